//! Scores so large that the softmax picks a single key, and raw scores beyond what masks exclude.

use test_support::large_scores;

use crate::ways::TensorCore;

#[test]
fn scaled_queries() {
    large_scores::scaled_queries::<TensorCore>();
}

#[test]
fn beyond_the_masks() {
    large_scores::beyond_the_masks::<TensorCore>();
}
