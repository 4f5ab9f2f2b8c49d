//! Members on two devices that are two. Builds that have one device have nothing to do here.

use burn_natten::AttentionOptions;
use burn_natten::parallel::{DenseSplit, Split};

use super::pair;
use super::run::{Team, agree, expected, run, run_dense};
use crate::support::check::F32;
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Setup};

fn problem(axes: Vec<Axis>, bias: bool) -> Problem {
    Problem {
        batch: 1,
        heads: 4,
        heads_kv: 2,
        dim: 8,
        dim_v: 8,
        additional: Some(3),
        scale: None,
        bias,
        axes,
    }
}

/// Either order, and inputs that begin on the first device.
fn teams(shards: [usize; 2], key_shards: [usize; 2]) -> Vec<Team> {
    let Some(pair) = pair() else { return vec![] };
    let [a, b] = pair.map(|device| device.autodiff());
    let orders = [vec![a.clone(), b.clone()], vec![b, a]];
    let team = |devices| Team { devices, shards: shards.to_vec(), key_shards: key_shards.to_vec() };
    orders.into_iter().map(team).collect()
}

#[test]
fn windows_over_two_devices() {
    let axis = |length, kernel_size, dilation| Axis::Window {
        length,
        kernel_size,
        stride: 1,
        dilation,
        is_causal: false,
    };
    let problem = problem(vec![axis(9, 3, 2), axis(4, 3, 1)], true);
    let inputs = problem.inputs(1);
    let want = expected(&problem, &inputs);
    for team in teams([5, 4], [5, 4]) {
        let setup = Setup::new(&team.devices[0]).loss(Loss::Both);
        for split in [Split::Heads { axis: 0 }, Split::Halo { axis: 0 }] {
            let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
            agree(&format!("{:?} {split}", team.devices), &got, &want, F32);
        }
    }
}

#[test]
fn dense_attention_over_two_devices() {
    let problem = problem(vec![Axis::Dense { queries: 12, keys: 17, is_causal: true }], false);
    let inputs = problem.inputs(2);
    let want = expected(&problem, &inputs);
    let options = AttentionOptions::new().with_causal(true);
    for team in teams([7, 5], [8, 9]) {
        let setup = Setup::new(&team.devices[0]).loss(Loss::Both);
        for split in [DenseSplit::Heads, DenseSplit::Gather, DenseSplit::Ring] {
            let got = run_dense(&problem, &inputs, &setup, &options, (&team, split));
            agree(&format!("{:?} {split}", team.devices), &got.expect("fits"), &want, F32);
        }
    }
}
