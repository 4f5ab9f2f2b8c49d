//! All sequences of a packed batch in one launch a pass, by rows.

use std::collections::HashSet;

use burn_natten_kernels::portable::{backward_packed, forward_packed};
use burn_natten_kernels::{Axis, Packed, Problem, Sequence, Shape};
use cubecl::client::Client;
use test_support::Data;
use test_support::absent::Absent;
use test_support::format::{F16, F32, Format};
use test_support::oracle::compute;
use test_support::packed::{
    Unwritten, check_backward, check_forward, check_memory, images, lengths, numbers, random,
    texts, videos,
};
use test_support::portable::client;

use crate::limits::WEBGPU;

fn check(client: &Client, format: Format, problems: &[Problem]) {
    let dtype = format.elem();
    check_forward(client, format, problems, |packed, inputs, outputs| {
        forward_packed(client, packed, dtype, false, inputs, outputs)
    });
    check_backward(client, format, problems, |packed, inputs, outputs| {
        backward_packed(client, packed, dtype, false, inputs, outputs)
    });
}

#[test]
fn sequences_of_every_kind() {
    let client = client();
    let like = Problem::new([Axis::UNIT], 2, 8).with_heads_kv(1).with_head_dim_v(12);
    check(&client, F32, &texts(like));
    check(&client, F32, &images(like.with_heads_kv(2)));
    check(&client, F16, &videos(like));
}

#[test]
fn random_batches() {
    let client = client();
    for number in numbers(3) {
        check(&client, F32, &random(number));
    }
}

/// Of a device that is not there, so that nothing is compiled for it.
#[test]
fn a_thousand_sets_of_lengths_have_the_same_kernels() {
    let device = Absent::new(&WEBGPU);
    let mut kernels = HashSet::new();
    let mut seen = 0;
    for number in 0..1000 {
        let unwritten = Unwritten::new(&device.client, F32, &lengths(number));
        let Unwritten { packed, saved, gradients } = &unwritten;
        let (client, dtype) = (&device.client, F32.elem());
        forward_packed(client, packed, dtype, false, &saved.operands, &unwritten.outputs())
            .expect("launched");
        backward_packed(client, packed, dtype, false, saved, gradients).expect("launched");
        kernels.extend(device.launches().iter().map(|launch| launch.kernel.id()));
        if number == 100 {
            seen = kernels.len();
        }
    }
    assert!(seen > 0 && kernels.len() == seen, "{} kernels, {seen} after 100 sets", kernels.len());
}

#[test]
fn a_thousand_sets_of_lengths_take_no_more_memory() {
    let client = client();
    check_memory(&client, F32, |unwritten| {
        let (packed, operands) = (&unwritten.packed, &unwritten.saved.operands);
        forward_packed(&client, packed, F32.elem(), false, operands, &unwritten.outputs())
            .expect("launched");
    });
}

#[test]
fn tokens_of_no_sequence_stay_as_they_are() {
    let client = client();
    let problem = Problem::new([Axis::dense(5, 5, true)], 2, 4);
    // Three tokens in front, four in the middle, two behind.
    let sequences = [12, 3].map(|first| Sequence { problem, query: first, key: first });
    let packed = Packed::new(sequences, [19, 19]).expect("one launch");
    let line = packed.line();
    let data = Data::random(line, 3, F32.round);
    let outputs = F32.poisoned_outputs(&client, line);
    let inputs = F32.operands(&client, line, &data);
    forward_packed(&client, &packed, F32.elem(), false, &inputs, &outputs).expect("launched");
    let (out, lse) = F32.download_outputs(&client, line, &outputs);
    let is_own = |token: usize| (3..8).contains(&token) || (12..17).contains(&token);
    let (row, heads) = (Shape::out(line).strides()[3], line.heads);
    for (token, (out, lse)) in out.chunks(row).zip(lse.chunks(heads)).enumerate() {
        assert!(out.iter().chain(lse).all(|value| value.is_nan() != is_own(token)), "{token}");
    }
    let part = |values: &[f64], row: usize| values[12 * row..17 * row].to_vec();
    let [query, key, value] = [&data.query, &data.key, &data.value].map(|all| part(all, row));
    let own = Data { query, key, value, ..Data::random(&problem, 3, F32.round) };
    let exact = compute(&problem, &own, |x| x);
    assert!(test_support::error(&part(&out, row), &exact.out) < 1e-5);
    assert!(test_support::error(&part(&lse, heads), &exact.lse) < 1e-5);
}
