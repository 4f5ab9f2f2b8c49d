//! Samples of a batch, which share tiles where they follow each other along the slowest of three axes.

use burn_natten_kernels::native::sm90::{Element, candidates};
use test_support::compare::format;
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{best_of, client, forward, hopper};

/// Scores of the second one that grow from step to step have its own maxima raised, and none of the first.
#[test]
fn what_the_others_hold_makes_no_difference() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let (client, element) = (client(), Element::Bf16);
    // Of sixteen rows of a tile, eight are in one plane.
    let axes = [axis(5, 3, 1, 1, false), axis(9, 5, 1, 1, false), axis(10, 5, 1, 1, false)];
    let problem = problem(&axes, 64).with_batch(2);
    let format = format(element);
    let first = |values: &[f64]| values[..values.len() / 2].to_vec();
    for teams in [1, 4] {
        let all = candidates(&problem, element);
        let schedule = best_of(all, &problem, |one| {
            one.warpgroups == 1 && one.teams == teams && one.q_tile == [8, 2, 4]
        });
        let mut data = Data::random(&problem, 5, format.round);
        let results = [1.0, 16.0].map(|factor| {
            let half = data.query.len() / 2;
            data.query[half..].iter_mut().for_each(|value| *value *= factor);
            let inputs = format.operands(&client, &problem, &data);
            let result = forward(&machine, &client, &schedule, &problem, &inputs);
            let (out, lse) = result.unwrap_or_else(|fault| panic!("{schedule}: {fault}"));
            (first(&out), first(&lse))
        });
        assert_eq!(results[0], results[1], "{schedule}");
    }
}
