//! Scores so large that most rows give one key nearly all the weight.
//!
//! Not as large as the forward pass's: weights are `exp(score - logsumexp)` here, without a sum that they
//! are divided by, and f32 scores of 1000 are known to no better than 1e-4.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::Element;
use test_support::compare::{device, for_each_case, format};
use test_support::problems::problem;
use test_support::tier::check_data;
use test_support::{Data, axis};

use super::run::planned;
use crate::ways::Native;

/// Scores have a standard deviation of about 1.8 for inputs as they are.
#[test]
fn scaled_queries() {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, true)];
    let problems = [
        problem(&[axis(203, 65, 1, 2, true)], 128),
        problem(&space[1..], 128),
        Problem { additional: 70, ..problem(&space, 64) },
        Problem { head_dim_v: 32, ..problem(&space, 256) },
    ];
    let both = |problem| [(problem, Element::F16, 8.0), (problem, Element::Bf16, 64.0)];
    let cases: Vec<_> = problems.into_iter().flat_map(both).collect();
    for_each_case(&cases, |(problem, element, factor), seed| {
        // A power of two, so that queries stay what they were rounded to.
        let mut data = Data::random(problem, seed, format(*element).round);
        data.query.iter_mut().for_each(|x| *x *= factor);
        check_data::<Native>(&client, *element, &planned(problem, *element), problem, &data)
    });
}
