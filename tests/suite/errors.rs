//! Every error with its exact text, and the panics that carry the same text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_natten::{
    AttentionError, AttentionOptions, NeighborhoodOptions, Strategy, attention, merge_attentions,
    na1d, na2d, na3d, try_attention, try_merge_attentions, try_na1d, try_na2d, try_na3d,
};
use rstest::rstest;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

/// The message of the panic in `run`.
fn panic_text<T>(run: impl FnOnce() -> T) -> String {
    let payload = catch_unwind(AssertUnwindSafe(run)).err().expect("it panics");
    payload.downcast_ref::<String>().expect("a formatted message").clone()
}

/// `try_na2d` fails with `text`, and `na2d` panics with it.
#[track_caller]
fn na2d_fails([q, k, v]: [Tensor<5>; 3], options: NeighborhoodOptions<2>, text: &str) {
    let error = try_na2d(q.clone(), k.clone(), v.clone(), options.clone()).expect_err(text);
    assert_eq!(error.to_string(), text);
    assert_eq!(panic_text(|| na2d(q, k, v, options)), text);
}

#[track_caller]
fn attention_fails([q, k, v]: [Tensor<4>; 3], options: AttentionOptions, text: &str) {
    let error = try_attention(q.clone(), k.clone(), v.clone(), options.clone()).expect_err(text);
    assert_eq!(error.to_string(), text);
    assert_eq!(panic_text(|| attention(q, k, v, options)), text);
}

const QUERY: [usize; 5] = [2, 6, 7, 4, 8];
const KEY: [usize; 5] = [2, 6, 7, 2, 8];
const VALUE: [usize; 5] = [2, 6, 7, 2, 3];

fn options() -> NeighborhoodOptions<2> {
    NeighborhoodOptions::new(3)
}

#[rstest]
#[case([2, 6, 7, 3, 8], KEY, VALUE, "query: has 3 heads, must be a multiple of the 2 heads of key")]
#[case(QUERY, [1, 6, 7, 2, 8], VALUE, "key: axis 0 (batch) is 1, must be 2 as in query")]
#[case(QUERY, KEY, [3, 6, 7, 2, 3], "value: axis 0 (batch) is 3, must be 2 as in query")]
#[case(QUERY, [2, 5, 7, 2, 8], VALUE, "key: axis 1 (space) is 5, must be 6 as in query")]
#[case(QUERY, [2, 6, 8, 2, 8], VALUE, "key: axis 2 (space) is 8, must be 7 as in query")]
#[case(QUERY, KEY, [2, 9, 7, 2, 3], "value: axis 1 (space) is 9, must be 6 as in query")]
#[case(QUERY, KEY, [2, 6, 1, 2, 3], "value: axis 2 (space) is 1, must be 7 as in query")]
#[case(QUERY, KEY, [2, 6, 7, 4, 3], "value: axis 3 (heads) is 4, must be 2 as in key")]
#[case(QUERY, [2, 6, 7, 2, 9], VALUE, "key: axis 4 (head_dim) is 9, must be 8 as in query")]
#[case([2, 6, 7, 0, 8], KEY, VALUE, "query: axis 3 (heads) is 0, must be at least 1")]
#[case(QUERY, [2, 6, 7, 0, 8], [2, 6, 7, 0, 3], "key: axis 3 (heads) is 0, must be at least 1")]
#[case([2, 6, 7, 4, 0], [2, 6, 7, 2, 0], VALUE, "query: axis 4 (head_dim) is 0, must be at least 1")]
#[case(QUERY, KEY, [2, 6, 7, 2, 0], "value: axis 4 (head_dim) is 0, must be at least 1")]
fn shapes_of_a_neighborhood(
    #[case] query: [usize; 5],
    #[case] key: [usize; 5],
    #[case] value: [usize; 5],
    #[case] text: &str,
) {
    na2d_fails([zeros(query), zeros(key), zeros(value)], options(), text);
}

#[rstest]
#[case(options().with_stride([1, 0]), "stride: axis 1 is 0, must be at least 1")]
#[case(options().with_stride([4, 1]), "stride: axis 0 is 4, must be at most 3 (kernel_size)")]
#[case(options().with_dilation([0, 1]), "dilation: axis 0 is 0, must be at least 1")]
#[case(
    options().with_dilation([1, 3]),
    "dilation: axis 1 is 3, must be at most 2 (the length of the axis / kernel_size)"
)]
#[case(NeighborhoodOptions::new([1, 3]), "kernel_size: axis 0 is 1, must be at least 2")]
#[case(NeighborhoodOptions::new([3, 0]), "kernel_size: axis 1 is 0, must be at least 2")]
#[case(
    NeighborhoodOptions::new(7),
    "kernel_size: axis 0 is 7, must be at most 6 (the length of the axis)"
)]
#[case(
    options().with_dilation(usize::MAX),
    "dilation: axis 0 is 18446744073709551615, must be at most 2 (the length of the axis / kernel_size)"
)]
#[case(options().with_scale(f64::NAN), "scale: is NaN, must be finite")]
#[case(options().with_scale(f64::INFINITY), "scale: is inf, must be finite")]
#[case(options().with_scale(f64::NEG_INFINITY), "scale: is -inf, must be finite")]
fn parameters_of_a_neighborhood(#[case] options: NeighborhoodOptions<2>, #[case] text: &str) {
    na2d_fails([zeros(QUERY), zeros(KEY), zeros(VALUE)], options, text);
}

#[rstest]
#[case([1, 2, 2, 8], [2, 2, 2, 3], "additional_keys: axis 0 (batch) is 1, must be 2 as in key")]
#[case([2, 2, 4, 8], [2, 2, 2, 3], "additional_keys: axis 2 (heads) is 4, must be 2 as in key")]
#[case([2, 2, 2, 3], [2, 2, 2, 3], "additional_keys: axis 3 (head_dim) is 3, must be 8 as in key")]
#[case([2, 2, 2, 8], [3, 2, 2, 3], "additional_values: axis 0 (batch) is 3, must be 2 as in value")]
#[case([2, 2, 2, 8], [2, 2, 1, 3], "additional_values: axis 2 (heads) is 1, must be 2 as in value")]
#[case(
    [2, 2, 2, 8],
    [2, 2, 2, 8],
    "additional_values: axis 3 (head_dim) is 8, must be 3 as in value"
)]
#[case(
    [2, 2, 2, 8],
    [2, 5, 2, 3],
    "additional_values: axis 1 (tokens) is 5, must be 2 as in additional_keys"
)]
fn shapes_of_additional_tokens(
    #[case] keys: [usize; 4],
    #[case] values: [usize; 4],
    #[case] text: &str,
) {
    let options = options().with_additional_kv(zeros(keys), zeros(values));
    na2d_fails([zeros(QUERY), zeros(KEY), zeros(VALUE)], options, text);
}

#[test]
fn additional_tokens_come_in_pairs() {
    let inputs = || [zeros(QUERY), zeros(KEY), zeros(VALUE)];
    let tokens = || zeros([2, 2, 2, 8]);
    let text = "additional_values: is missing, must be given together with additional_keys";
    na2d_fails(inputs(), options().with_additional_kv(tokens(), None), text);
    let text = "additional_keys: is missing, must be given together with additional_values";
    na2d_fails(inputs(), options().with_additional_kv(None, tokens()), text);
    na2d_fails(inputs(), options().with_additional_kv(None, zeros([7, 7, 7, 7])), text);
}

#[rstest]
#[case([2, 5, 9], "bias: axis 0 (heads) is 2, must be 4 as in query")]
#[case([4, 6, 9], "bias: axis 1 is 6, must be 5 (2 * kernel_size - 1, kernel_size is 3)")]
#[case([4, 5, 5], "bias: axis 2 is 5, must be 9 (2 * kernel_size - 1, kernel_size is 5)")]
#[case([4, 5, 0], "bias: axis 2 is 0, must be 9 (2 * kernel_size - 1, kernel_size is 5)")]
fn shapes_of_a_bias(#[case] bias: [usize; 3], #[case] text: &str) {
    let options = NeighborhoodOptions::<2>::new([3, 5]);
    let inputs = || [zeros(QUERY), zeros(KEY), zeros(VALUE)];
    na2d_fails(inputs(), options.clone().with_bias(zeros(bias)), text);
    let valid = zeros([4, 5, 9]);
    let [q, k, v] = inputs();
    try_na2d(q, k, v, options.clone().with_bias(valid.clone())).expect("it fits");
    let text = "bias: has dtype F16, must be F32 as in query";
    na2d_fails(inputs(), options.clone().with_bias(valid.cast(FloatDType::F16)), text);
    // A bias that is taken back is none.
    let [q, k, v] = inputs();
    try_na2d(q, k, v, options.with_bias(zeros(bias)).with_bias(None)).expect("there is none");
}

#[rstest]
#[case([2, 5, 3, 8], [2, 9, 3, 8], [2, 8, 3, 8], "value: axis 1 (tokens) is 8, must be 9 as in key")]
#[case([2, 5, 3, 8], [1, 9, 3, 8], [2, 9, 3, 8], "key: axis 0 (batch) is 1, must be 2 as in query")]
#[case([2, 5, 3, 8], [2, 9, 3, 7], [2, 9, 3, 8], "key: axis 3 (head_dim) is 7, must be 8 as in query")]
#[case(
    [2, 5, 3, 8],
    [2, 9, 2, 8],
    [2, 9, 2, 8],
    "query: has 3 heads, must be a multiple of the 2 heads of key"
)]
#[case([2, 5, 3, 8], [2, 9, 3, 8], [2, 9, 1, 8], "value: axis 2 (heads) is 1, must be 3 as in key")]
fn shapes_of_dense_attention(
    #[case] query: [usize; 4],
    #[case] key: [usize; 4],
    #[case] value: [usize; 4],
    #[case] text: &str,
) {
    attention_fails([zeros(query), zeros(key), zeros(value)], AttentionOptions::new(), text);
}

#[test]
fn every_rank_names_its_axes() {
    let line = zeros([1, 5, 1, 2]);
    let text = "kernel_size: axis 0 is 6, must be at most 5 (the length of the axis)";
    let options = NeighborhoodOptions::<1>::new(6);
    let error = try_na1d(line.clone(), line.clone(), line.clone(), options.clone());
    assert_eq!(error.expect_err(text).to_string(), text);
    assert_eq!(panic_text(|| na1d(line.clone(), line.clone(), line, options)), text);
    let volume = zeros([1, 5, 6, 4, 1, 2]);
    let text = "kernel_size: axis 2 is 5, must be at most 4 (the length of the axis)";
    let options = NeighborhoodOptions::<3>::new(5);
    let error = try_na3d(volume.clone(), volume.clone(), volume.clone(), options.clone());
    assert_eq!(error.expect_err(text).to_string(), text);
    assert_eq!(panic_text(|| na3d(volume.clone(), volume.clone(), volume, options)), text);
    let text = "kernel_size: axis 0 is 2, must be at most 0 (the length of the axis)";
    let empty = zeros([1, 0, 1, 2]);
    let error = try_na1d(empty.clone(), empty.clone(), empty, NeighborhoodOptions::<1>::new(2));
    assert_eq!(error.expect_err(text).to_string(), text);
}

#[test]
fn dtypes_must_agree() {
    let half = |tensor: Tensor<4>| tensor.cast(FloatDType::F16);
    let x = || zeros([1, 4, 1, 2]);
    let plain = AttentionOptions::new;
    let text = "key: has dtype F16, must be F32 as in query";
    attention_fails([x(), half(x()), x()], plain(), text);
    let text = "value: has dtype F16, must be F32 as in query";
    attention_fails([x(), x(), half(x())], plain(), text);
    let text = "additional_keys: has dtype F16, must be F32 as in query";
    attention_fails([x(), x(), x()], plain().with_additional_kv(half(x()), x()), text);
    let text = "additional_values: has dtype F16, must be F32 as in query";
    attention_fails([x(), x(), x()], plain().with_additional_kv(x(), half(x())), text);
}

#[test]
fn merging_checks_its_parts() {
    let fails = |outs: Vec<Tensor<4>>, lses: Vec<Tensor<3>>, text: &str| {
        let error = try_merge_attentions(outs.clone(), lses.clone()).expect_err(text);
        assert_eq!(error.to_string(), text);
        assert_eq!(panic_text(|| merge_attentions(outs, lses)), text);
    };
    let (out, lse) = (|| zeros([2, 4, 3, 8]), || zeros([2, 4, 3]));
    fails(vec![], vec![], "outputs: has 0 tensors, must have at least 1");
    fails(vec![], vec![lse()], "outputs: has 0 tensors, must have at least 1");
    fails(vec![out()], vec![], "logsumexps: has 0 tensors, must have 1 as outputs");
    let text = "logsumexps: has 3 tensors, must have 2 as outputs";
    fails(vec![out(), out()], vec![lse(), lse(), lse()], text);
    let text = "outputs: axis 1 (any) is 5, must be 4 as in outputs[0]";
    fails(vec![out(), zeros([2, 5, 3, 8])], vec![lse(), lse()], text);
    let text = "logsumexps: axis 2 (any) is 1, must be 3 as in outputs[0]";
    fails(vec![out(), out()], vec![lse(), zeros([2, 4, 1])], text);
    let text = "outputs: has dtype F16, must be F32 as in outputs[0]";
    fails(vec![out(), out().cast(FloatDType::F16)], vec![lse(), lse()], text);
    let text = "logsumexps: has dtype F16, must be F32 as in the accumulator of outputs";
    fails(vec![out()], vec![lse().cast(FloatDType::F16)], text);

    let text = "logsumexps: has 2 axes, must have 3";
    let (outs, lses) = (vec![out()], vec![zeros([2, 4])]);
    let error = try_merge_attentions(outs.clone(), lses.clone()).expect_err(text);
    assert_eq!(error.to_string(), text);
    assert_eq!(panic_text(|| merge_attentions(outs, lses)), text);
    // A logsumexp of higher rank than the output, or as high.
    let error = try_merge_attentions(vec![out()], vec![out()]).expect_err("rank 4");
    assert_eq!(error.to_string(), "logsumexps: has 4 axes, must have 3");
}

#[rstest]
#[case(Strategy::TensorCore)]
#[case(Strategy::Hopper)]
#[case(Strategy::Blackwell)]
fn a_named_strategy_that_cannot_run_is_an_error(#[case] strategy: Strategy) {
    let x = || zeros([1, 4, 1, 2]);
    let options = AttentionOptions::new().with_strategy(strategy);
    let error = try_attention(x(), x(), x(), options.clone()).expect_err("there is no such unit");
    assert!(
        matches!(&error, AttentionError::Strategy { strategy: named, .. } if *named == strategy)
    );
    let text = error.to_string();
    assert!(text.starts_with(&format!("strategy: {strategy:?} cannot run here, ")), "{text}");
    assert_eq!(panic_text(|| attention(x(), x(), x(), options)), text);
    let options = NeighborhoodOptions::<1>::new(2).with_strategy(strategy);
    assert_eq!(try_na1d(x(), x(), x(), options).expect_err("nor here"), error);
}

#[cfg(feature = "cpu")]
#[test]
fn devices_must_agree() {
    let x = |device: &Device| Tensor::<4>::zeros([1, 4, 1, 2], (device, DType::F32));
    let (flex, cpu) = (Device::flex(), Device::cpu());
    let error = try_attention(x(&flex), x(&cpu), x(&flex), AttentionOptions::new());
    let expected = format!("key: is on {cpu:?}, must be on {flex:?} as query");
    assert_eq!(error.expect_err("two devices").to_string(), expected);
    let options = AttentionOptions::new().with_additional_kv(x(&cpu), x(&cpu));
    let error = try_attention(x(&flex), x(&flex), x(&flex), options);
    let expected = format!("additional_keys: is on {cpu:?}, must be on {flex:?} as query");
    assert_eq!(error.expect_err("two devices").to_string(), expected);
    let bias = Tensor::<2>::zeros([1, 3], (&cpu, DType::F32));
    let options = NeighborhoodOptions::<1>::new(2).with_bias(bias);
    let error = try_na1d(x(&flex), x(&flex), x(&flex), options).expect_err("two devices");
    assert_eq!(error.to_string(), format!("bias: is on {cpu:?}, must be on {flex:?} as query"));
    let lse = |device: &Device| Tensor::<3>::zeros([1, 4, 1], (device, DType::F32));
    let error = try_merge_attentions(vec![x(&flex)], vec![lse(&cpu)]).expect_err("two devices");
    let expected = format!("logsumexps: is on {cpu:?}, must be on {flex:?} as outputs[0]");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn tracked_and_untracked_inputs_mix() {
    let x = |device: &Device| Tensor::<4>::ones([1, 4, 1, 2], (device, DType::F32));
    let (plain, tracked) = (Device::flex(), Device::flex().autodiff());
    let mixed = [&tracked, &plain, &plain];
    let [q, k, v] = mixed.map(x);
    let result = catch_unwind(AssertUnwindSafe(|| {
        try_attention(q.require_grad(), k, v, AttentionOptions::new())
    }));
    // Burn's own operators decide whether the two meet; ours must not turn it into a wrong error.
    if let Ok(result) = result {
        result.expect("tracking is not a device of its own");
    }
}
