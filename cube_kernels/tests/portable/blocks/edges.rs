//! Problems without work, gradients that nobody wants, results that repeat, and what is refused.

use burn_natten_kernels::portable::blocks::{backward, backward_with, forward};
use burn_natten_kernels::{Axis, BlockSparse, KernelError, Operand, Problem};
use rand::{SeedableRng, rngs::StdRng};
use test_support::Data;
use test_support::blocks::{Layout, Sparse, compute, operands, random_lists, saved, upload_lists};
use test_support::format::F32;
use test_support::portable::client;

use super::check;
use super::device::run;

fn small() -> BlockSparse {
    let problem = Problem::new([Axis::dense(20, 26, true)], 4, 8).with_batch(2).with_heads_kv(2);
    BlockSparse::new(problem, [3], [4]).with_lists(2, 5)
}

fn with(sparse: &BlockSparse, axis: Axis) -> BlockSparse {
    let mut other = *sparse;
    other.problem = sparse.problem.with_axes([axis]);
    other
}

#[test]
fn problems_without_pairs_give_zeros() {
    let small = small();
    let mut alone = small;
    alone.problem.batch = 0;
    let cases = [
        ("no entries", small.with_lists(2, 0)),
        ("no keys", with(&small, Axis::dense(20, 0, false))),
        ("no queries", with(&small, Axis::dense(0, 26, false))),
        ("nothing", with(&small, Axis::dense(0, 0, true))),
        ("no samples", alone),
        ("all keys are later", with(&small, Axis::dense(20, 26, true).with_origin(-20))),
    ];
    for (name, sparse) in cases {
        check(name, sparse, F32, Layout::Contiguous, 40);
        let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(40));
        let data = Data::random(&sparse.problem, 40, F32.round);
        let Sparse { out, lse, dq, dk, dv } =
            run(&client(), F32, &sparse, &lists, &data, Layout::Contiguous);
        assert!([out, dq, dk, dv].concat().iter().all(|x| *x == 0.0), "{name}");
        assert!(lse.iter().all(|x| *x == f64::NEG_INFINITY), "{name}");
    }
}

#[test]
fn origins_far_away_see_everything_or_nothing() {
    for (origin, step) in [(isize::MAX / 4, 3), (isize::MIN / 4, 3), (1 << 40, 1), (5, 1 << 20)] {
        let axis = Axis::dense(20, 26, true).with_origin(origin);
        check("far", with(&small(), axis).with_step(step), F32, Layout::Contiguous, 41);
    }
}

#[test]
fn a_block_that_is_listed_twice_weighs_twice() {
    let problem = Problem::new([Axis::dense(4, 8, false)], 1, 8);
    let once = BlockSparse::new(problem, [4], [4]).with_lists(1, 2);
    let twice = once.with_lists(1, 3);
    let data = Data::random(&problem, 42, F32.round);
    let of = |sparse, lists: &[i32]| run(&client(), F32, &sparse, lists, &data, Layout::Contiguous);
    let (plain, doubled) = (of(once, &[0, 1]), of(twice, &[1, 0, 1]));
    assert!(plain.lse.iter().zip(&doubled.lse).all(|(plain, doubled)| plain < doubled));
    assert_ne!(plain.out, doubled.out);
    let exact = compute(&twice, &[1, 0, 1], &data, |x| x);
    for ((name, a), (_, e)) in doubled.named().into_iter().zip(exact.named()) {
        assert!(test_support::error(a, e) < 1e-5, "{name}");
    }
}

#[test]
fn results_repeat_bit_by_bit() {
    let sparse = small();
    let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(43));
    let data = Data::random(&sparse.problem, 43, F32.round);
    let of = || run(&client(), F32, &sparse, &lists, &data, Layout::Contiguous);
    let first = of();
    for _ in 1..20 {
        assert_eq!(of(), first);
    }
}

#[test]
fn gradients_that_nobody_wants_change_no_others() {
    let (client, sparse) = (client(), small());
    let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(44));
    let data = Data::random(&sparse.problem, 44, F32.round);
    let exact = compute(&sparse, &lists, &data, F32.round);
    let results: [&[f64]; 2] = [&exact.out, &exact.lse];
    let saved = saved(&client, F32, &sparse, &data, results, Layout::Contiguous);
    let lists = upload_lists(&client, &lists);
    let run = |wanted: &dyn Fn(Operand) -> bool| {
        let gradients = F32.poisoned_gradients(&client, &sparse.problem);
        let gradients = gradients.map(|operand, handle| handle.filter(|_| wanted(operand)));
        backward(&client, &sparse, F32.elem(), &saved, &lists, &gradients).expect("launched");
        F32.download_gradients(&client, &sparse.problem, &gradients)
    };
    let all = run(&|_| true);
    for (index, operand) in [Operand::Query, Operand::Key, Operand::Value].into_iter().enumerate() {
        assert_eq!(run(&|other| other == operand), [all[index].clone()]);
        let mut others = all.clone();
        others.remove(index);
        assert_eq!(run(&|other| other != operand), others);
    }
    assert_eq!(run(&|_| false), []);
}

#[test]
fn units_that_share_a_key_give_what_one_gives() {
    let client = client();
    let most = client.properties().hardware.max_units_per_cube as usize;
    // Runs of tokens and runs of heads; keys that do not fill the last cube.
    let mut single = small();
    single.query_block[2] = 1;
    for sparse in [small(), single] {
        let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(46));
        let data = Data::random(&sparse.problem, 46, F32.round);
        let exact = compute(&sparse, &lists, &data, F32.round);
        let results: [&[f64]; 2] = [&exact.out, &exact.lse];
        let saved = saved(&client, F32, &sparse, &data, results, Layout::Contiguous);
        let lists = upload_lists(&client, &lists);
        for parts in [1, 2, 3, 8].into_iter().filter(|parts| *parts <= most) {
            let gradients = F32.poisoned_gradients(&client, &sparse.problem);
            let elem = F32.elem();
            backward_with(&client, parts, &sparse, elem, &saved, &lists, &gradients)
                .expect("launched");
            let gradients = F32.download_gradients(&client, &sparse.problem, &gradients);
            for ((name, actual), (_, exact)) in gradients.iter().zip(&exact.named()[2..]) {
                let error = test_support::error(actual, exact);
                assert!(error < 1e-5, "{name} by {parts}: {error:e}");
            }
        }
    }
}

#[test]
fn what_cannot_run_is_refused_in_words() {
    let (client, sparse) = (client(), small());
    let data = Data::random(&sparse.problem, 45, F32.round);
    let inputs = operands(&client, F32, &sparse, &data, Layout::Contiguous);
    let outputs = F32.poisoned_outputs(&client, &sparse.problem);
    let lists = upload_lists(&client, &vec![0; sparse.list_elements()]);
    let launch = |sparse: &BlockSparse, lists: &_| {
        forward(&client, sparse, F32.elem(), &inputs, lists, &outputs)
    };
    assert_eq!(launch(&sparse, &lists), Ok(()));
    let short = upload_lists(&client, &vec![0; sparse.list_elements() - 1]);
    let expected = 4 * sparse.list_elements() as u64;
    let error = KernelError::Buffer { name: "blocks", expected, actual: expected - 4 };
    assert_eq!(launch(&sparse, &short), Err(error));

    let mut without_block = sparse;
    without_block.key_block[2] = 0;
    let mut three = sparse;
    three.list_heads = 3;
    let mut uneven = sparse;
    uneven.problem.heads_kv = 3;
    let mut more = sparse;
    more.problem.additional = 1;
    let window = with(&sparse, Axis::neighborhood(20, 3));
    let cases = [
        (without_block, "at least 1"),
        (sparse.with_step(0), "at least 1"),
        (sparse.with_step(1 << 40), "2^31"),
        (three, "list_heads"),
        (uneven, "heads_kv"),
        (more, "additional"),
        (window, "dense"),
    ];
    for (sparse, word) in cases {
        let result = launch(&sparse, &lists);
        let Err(KernelError::Problem(reason)) = &result else { panic!("{word}: {result:?}") };
        assert!(reason.contains(word), "{reason}");
    }
    let gradients = F32.poisoned_gradients(&client, &sparse.problem);
    let none = [&vec![0.0; data.dout.len()][..], &vec![0.0; data.dlse.len()]];
    let saved = saved(&client, F32, &sparse, &data, none, Layout::Contiguous);
    for parts in [0, 1 << 20] {
        let result = backward_with(&client, parts, &sparse, F32.elem(), &saved, &lists, &gradients);
        assert!(matches!(result, Err(KernelError::Blueprint(_))), "{result:?}");
    }
    let mut outside = inputs.clone();
    outside.key.strides[3] *= 2;
    let result = forward(&client, &sparse, F32.elem(), &outside, &lists, &outputs);
    assert!(matches!(result, Err(KernelError::Buffer { name: "key", .. })), "{result:?}");
}
