use burn_natten_kernels::Axis;

use super::*;

const CUBE: Capabilities = Capabilities::cube();
const FLEX: Capabilities = Capabilities::flex();
const HOPPER: Capabilities = CUBE.with_hopper(true).with_wide_indices(true);
const BLACKWELL: Capabilities = CUBE.with_blackwell(true).with_wide_indices(true);

fn cuda(sm: u32) -> Capabilities {
    CUBE.with_wide_indices(true)
        .with_hopper(sm == 90)
        .with_blackwell(sm == 100 || sm == 103)
        .with_tensor_cores(TensorCores::cuda(sm))
}

fn problem(tokens: usize) -> Problem {
    Problem::new([Axis::dense(tokens, tokens, false)], 1, 64)
}

fn of_dim(head_dim: usize) -> Problem {
    Problem::new([Axis::dense(16, 16, false)], 1, head_dim)
}

fn tier(strategy: Strategy, dtype: DType, device: Capabilities) -> Tier {
    select(&problem(16), strategy, dtype, device, Context::new()).expect("a tier")
}

#[test]
fn auto_takes_the_kernels_of_the_device() {
    assert_eq!(tier(Strategy::Auto, DType::F64, FLEX), Tier::Flex);
    assert_eq!(tier(Strategy::Auto, DType::BF16, CUBE), Tier::Portable);
    assert_eq!(tier(Strategy::Auto, DType::F64, CUBE), Tier::Reference);
    assert_eq!(tier(Strategy::Reference, DType::F32, CUBE), Tier::Reference);
    assert_eq!(tier(Strategy::Auto, DType::BF16, HOPPER), Tier::Hopper);
    assert_eq!(tier(Strategy::Auto, DType::F32, HOPPER), Tier::Portable);
    assert_eq!(tier(Strategy::Portable, DType::F16, HOPPER), Tier::Portable);
}

#[test]
fn what_hopper_does_not_cover_is_portable_unless_it_was_named() {
    let odd = of_dim(20);
    let of = |strategy| select(&odd, strategy, DType::F16, HOPPER, Context::new());
    assert_eq!(of(Strategy::Auto).expect("a tier"), Tier::Portable);
    assert_eq!(
        of(Strategy::Hopper).expect_err("no multiple of 8").to_string(),
        "strategy: Hopper cannot run here, head_dim is 20, not a multiple of 8 up to 256"
    );
}

#[test]
fn what_blackwell_does_not_cover_is_for_the_tensor_cores() {
    assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(100)), Tier::Blackwell);
    assert_eq!(tier(Strategy::Auto, DType::F16, cuda(103)), Tier::Blackwell);
    assert_eq!(tier(Strategy::Auto, DType::F32, cuda(100)), Tier::Portable);
    // Chips for other uses have no tensor memory.
    assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(120)), Tier::TensorCore);
    let odd = of_dim(20);
    let plane = [Axis::neighborhood(9, 3), Axis::neighborhood(9, 3)];
    let biased = Problem::new(plane, 2, 64).with_bias(true);
    let of = |problem, strategy| select(problem, strategy, DType::F16, cuda(100), Context::new());
    assert_eq!(of(&odd, Strategy::Auto), Ok(Tier::TensorCore));
    assert_eq!(of(&biased, Strategy::Auto), Ok(Tier::TensorCore));
    let text = |problem| of(problem, Strategy::Blackwell).expect_err("refused").to_string();
    assert_eq!(
        text(&odd),
        "strategy: Blackwell cannot run here, head_dim is 20, not a multiple of 8 up to 256"
    );
    assert_eq!(
        text(&biased),
        "strategy: Blackwell cannot run here, its kernels know no position bias"
    );
}

#[test]
fn a_position_bias_is_for_tiers_that_know_it() {
    let plane = [Axis::neighborhood(9, 3), Axis::neighborhood(9, 3)];
    let problem = Problem::new(plane, 2, 64).with_bias(true);
    let of = |strategy, device| select(&problem, strategy, DType::BF16, device, Context::new());
    assert_eq!(of(Strategy::Auto, FLEX), Ok(Tier::Flex));
    assert_eq!(of(Strategy::Auto, cuda(90)), Ok(Tier::Hopper));
    assert_eq!(of(Strategy::Auto, cuda(80)), Ok(Tier::TensorCore));
    assert_eq!(of(Strategy::TensorCore, cuda(90)), Ok(Tier::TensorCore));
    // Sums of its gradient have to fit beside the tiles.
    let side = Axis::neighborhood(40, 19);
    let large = Problem::new([side, side], 2, 64).with_bias(true);
    let of = |strategy| select(&large, strategy, DType::BF16, cuda(90), Context::new());
    assert_eq!(of(Strategy::Auto), Ok(Tier::TensorCore));
    assert_eq!(
        of(Strategy::Hopper).expect_err("37 x 37 entries").to_string(),
        "strategy: Hopper cannot run here, the position bias has more than 860 entries for a head"
    );
    let long = Problem::new([Axis::neighborhood(1 << 20, (1 << 19) + 1)], 2, 64).with_bias(true);
    let of = |strategy| select(&long, strategy, DType::BF16, cuda(80), Context::new());
    assert_eq!(of(Strategy::Auto), Ok(Tier::Portable));
    assert_eq!(
        of(Strategy::TensorCore).expect_err("2^20 + 1 entries").to_string(),
        "strategy: TensorCore cannot run here, the position bias has 1048577 entries for a head, more than 1048576"
    );
}

#[test]
fn tensor_cores_come_between_hopper_and_portable() {
    assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(80)), Tier::TensorCore);
    assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(90)), Tier::Hopper);
    assert_eq!(tier(Strategy::TensorCore, DType::F16, cuda(90)), Tier::TensorCore);
    assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(75)), Tier::Portable);
    assert_eq!(tier(Strategy::Auto, DType::F32, cuda(80)), Tier::Portable);
    let odd = of_dim(20);
    let of = |problem| {
        select(&problem, Strategy::Auto, DType::F16, cuda(90), Context::new()).expect("a tier")
    };
    assert_eq!(of(odd), Tier::TensorCore);
    assert_eq!(of(of_dim(300)), Tier::Portable);
}

#[test]
fn f32_is_multiplied_in_tf32_only_where_that_is_allowed() {
    let allowed = Context::new().with_allow_tf32(true);
    let of =
        |strategy, dtype, device, context| select(&problem(16), strategy, dtype, device, context);
    for sm in [80, 90] {
        let auto = |dtype, context| of(Strategy::Auto, dtype, cuda(sm), context);
        assert_eq!(auto(DType::F32, Context::new()), Ok(Tier::Portable));
        assert_eq!(auto(DType::F32, allowed), Ok(Tier::TensorCore));
        assert_eq!(auto(DType::F64, allowed), Ok(Tier::Reference));
        assert_eq!(auto(DType::F16, allowed), auto(DType::F16, Context::new()));
    }
    assert_eq!(of(Strategy::Auto, DType::F32, CUBE, allowed), Ok(Tier::Portable));
    assert_eq!(of(Strategy::Auto, DType::F32, cuda(75), allowed), Ok(Tier::Portable));
    let named = |dtype, device, context| of(Strategy::TensorCore, dtype, device, context);
    assert_eq!(named(DType::F32, cuda(90), allowed), Ok(Tier::TensorCore));
    let text = |result: Result<Tier, AttentionError>| result.expect_err("refused").to_string();
    assert_eq!(
        text(named(DType::F32, cuda(80), Context::new())),
        "strategy: TensorCore cannot run here, its kernels round f32 to TF32 \
         (Context::with_allow_tf32 allows them)"
    );
    assert_eq!(
        text(named(DType::F64, cuda(80), allowed)),
        "strategy: TensorCore cannot run here, its kernels run in f16, bf16 and TF32"
    );
    // Cooperative matrices have none.
    let tensor_cores = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
    let cooperative = CUBE.with_tensor_cores(tensor_cores);
    let experimental = allowed.with_allow_experimental(true, true);
    assert!(text(named(DType::F32, cooperative, experimental)).contains("have no TF32"));
}

#[test]
fn what_has_never_run_is_asked_for() {
    let cooperative = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
    let device = CUBE.with_tensor_cores(cooperative);
    let of = |strategy, context| select(&problem(16), strategy, DType::F16, device, context);
    let allowed = Context::new().with_allow_experimental(true, false);
    assert_eq!(of(Strategy::Auto, Context::new()), Ok(Tier::Portable));
    assert_eq!(of(Strategy::Auto, allowed), Ok(Tier::TensorCore));
    assert_eq!(of(Strategy::TensorCore, allowed), Ok(Tier::TensorCore));
    let error = of(Strategy::TensorCore, Context::new()).expect_err("not allowed");
    assert!(error.to_string().contains("Context::with_allow_experimental"), "{error}");
}

#[test]
fn a_backward_pass_that_has_never_run_is_asked_for_by_itself() {
    let rungs = |cores: TensorCores, strategy, backward| {
        let context = Context::new().with_allow_experimental(true, backward);
        let device = CUBE.with_tensor_cores(Some(cores));
        let problem = problem(16);
        let request = Request { problem: &problem, dtype: DType::F16, device, context };
        let selection = selection(&request, strategy).expect("allowed");
        assert_eq!(selection.forward.first(), Tier::TensorCore);
        selection.backward.iter().collect::<Vec<_>>()
    };
    let mma = TensorCores::cuda(80).expect("Ampere");
    let cooperative = mma.with_cmma([8, 8, 8]);
    let all = [Tier::TensorCore, Tier::Portable, Tier::Reference];
    for is_allowed in [false, true] {
        assert_eq!(rungs(mma, Strategy::Auto, is_allowed), all);
        assert_eq!(rungs(mma, Strategy::TensorCore, is_allowed), all[..1]);
    }
    for strategy in [Strategy::Auto, Strategy::TensorCore] {
        assert_eq!(rungs(cooperative, strategy, false), all[1..]);
    }
    assert_eq!(rungs(cooperative, Strategy::TensorCore, true), all[..1]);
}

#[test]
fn a_problem_with_an_operand_that_kernels_do_not_know_is_refused() {
    let without_tokens =
        |operand| !matches!(operand, Operand::AdditionalKey | Operand::AdditionalValue);
    let plain = problem(16);
    let with_tokens = plain.with_additional(3);
    assert_eq!(unknown(&plain, without_tokens), None);
    assert_eq!(unknown(&with_tokens, without_tokens), Some(Operand::AdditionalKey));
    for tier in Tier::ALL {
        assert_eq!(unknown(&with_tokens, |operand| tier.knows(operand)), None, "{tier}");
    }
}

#[test]
fn a_strategy_of_two_tiers_is_refused_by_that_of_the_device() {
    let refused = || vec![(Tier::Flex, "flex".into()), (Tier::Portable, "portable".into())];
    assert_eq!(refusal(refused(), FLEX), "flex");
    assert_eq!(refusal(refused(), CUBE), "portable");
    let nothing = Capabilities { is_cube: false, ..CUBE };
    let error = select(&problem(16), Strategy::Portable, DType::F32, nothing, Context::new());
    assert_eq!(
        error.expect_err("no kernels").to_string(),
        "strategy: Portable cannot run here, it needs a Flex or a CubeCL device"
    );
}

#[test]
fn auto_goes_down_tier_by_tier() {
    let of = |problem: &Problem, strategy| {
        let context = Context::new();
        let request = Request { problem, dtype: DType::BF16, device: cuda(90), context };
        selection(&request, strategy).expect("it runs")
    };
    let auto = of(&problem(16), Strategy::Auto);
    let rungs = [Tier::Hopper, Tier::TensorCore, Tier::Portable, Tier::Reference];
    assert_eq!(auto.forward.iter().collect::<Vec<_>>(), rungs);
    assert_eq!((auto.backward, auto.notes), (auto.forward, vec![]));
    // By name there is nothing below.
    let named = of(&problem(16), Strategy::Hopper);
    assert_eq!(named.forward.iter().collect::<Vec<_>>(), [Tier::Hopper]);
    // What a device has and a problem does without is worth a line, and only then.
    let odd = of_dim(20);
    let notes =
        ["using the TensorCore kernels, because head_dim is 20, not a multiple of 8 up to 256"];
    assert_eq!(of(&odd, Strategy::Auto).notes, notes);
    assert!(of(&odd, Strategy::Portable).notes.is_empty());
}

#[test]
fn a_named_strategy_that_cannot_run_says_why() {
    let text = |tokens: usize, strategy, dtype, device| {
        select(&problem(tokens), strategy, dtype, device, Context::new())
            .expect_err("cannot run")
            .to_string()
    };
    assert_eq!(
        text(16, Strategy::Hopper, DType::BF16, FLEX),
        "strategy: Hopper cannot run here, it needs a GPU of compute capability 9.0, the \
         feature `cuda` and NVRTC"
    );
    assert_eq!(
        text(16, Strategy::Hopper, DType::F32, HOPPER),
        "strategy: Hopper cannot run here, its kernels run in f16 and bf16"
    );
    assert_eq!(
        text(16, Strategy::TensorCore, DType::BF16, CUBE),
        "strategy: TensorCore cannot run here, it needs matrix units that CubeCL gives access \
         to and planes of 32 units"
    );
    assert_eq!(
        text(16, Strategy::Blackwell, DType::BF16, HOPPER),
        "strategy: Blackwell cannot run here, it needs a GPU of compute capability 10.0 or 10.3, \
         the feature `cuda` and NVRTC"
    );
    assert_eq!(
        text(16, Strategy::Blackwell, DType::F32, BLACKWELL),
        "strategy: Blackwell cannot run here, its kernels run in f16 and bf16"
    );
    assert_eq!(
        text(16, Strategy::Portable, DType::F64, CUBE),
        "strategy: Portable cannot run here, its kernels have no f64"
    );
    assert_eq!(
        text(1 << 26, Strategy::Portable, DType::F32, CUBE),
        "strategy: Portable cannot run here, a tensor has more than 2^31 elements and the \
         device no 64-bit indices"
    );
}
