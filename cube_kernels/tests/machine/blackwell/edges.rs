//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::native::sm100::unsupported;
use burn_natten_kernels::{Axis, Problem};
use test_support::problems::edges;
use test_support::{axis, problem};

use super::ways::{check, in_turn};

/// Causal attention of fewer queries than keys: nobody sees the last ones.
fn with_unseen_keys() -> Vec<Problem> {
    let (line, plane) =
        (Axis::dense(70, 300, true).with_origin(0), Axis::dense(5, 21, true).with_origin(0));
    let side = axis(11, 5, 2, 1, false);
    vec![
        problem(&[line], 64),
        problem(&[Axis::dense(1, 65, true).with_origin(0)], 128),
        problem(&[plane, side], 64),
        problem(&[side, plane], 128).with_heads(4),
    ]
}

fn check_supported(problems: Vec<Problem>) {
    let supported = problems.into_iter().filter(|problem| unsupported(problem).is_none());
    check(&in_turn(supported));
}

#[test]
fn single_queries_and_keys() {
    check_supported(edges::single_queries_and_keys());
}

#[test]
#[ignore = "minutes"]
fn edges_of_every_kind() {
    let lists = [
        edges::lengths_around_tiles(),
        edges::queries_and_keys_of_different_number(),
        edges::windows_of_a_whole_axis(),
        edges::numbers_of_heads(),
        edges::numbers_of_samples(),
        edges::vectors_of_every_length(),
        edges::dilations(),
        with_unseen_keys(),
    ];
    check_supported(lists.into_iter().flatten().collect());
}
