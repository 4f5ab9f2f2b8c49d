//! Windows over shards.

use burn::tensor::DType;
use burn_natten::parallel::Split;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::run::{Team, agree, expected, random_problem, random_shards, run};
use crate::support::check::{F32, identical};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Results, Setup};
use crate::support::{devices, quick_devices};

fn window(length: usize, kernel_size: usize) -> Axis {
    Axis::Window { length, kernel_size, stride: 1, dilation: 1, is_causal: false }
}

fn problem(axes: &[Axis]) -> Problem {
    Problem {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        dim: 8,
        dim_v: 4,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.to_vec(),
    }
}

/// A problem, the axis that is split, and the shards.
fn random(seed: u64) -> (Problem, usize, Vec<usize>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let rank = rng.random_range(1..=3);
    let longest = [40, 12, 7][rank - 1];
    let axes: Vec<_> = (0..rank)
        .map(|_| {
            let length = rng.random_range(4..=longest);
            let kernel_size = rng.random_range(2..=length);
            Axis::Window {
                length,
                kernel_size,
                stride: rng.random_range(1..=kernel_size),
                dilation: rng.random_range(1..=length / kernel_size),
                is_causal: rng.random_bool(0.3),
            }
        })
        .collect();
    let along = rng.random_range(0..rank);
    let members = rng.random_range(1..=4);
    let shards = random_shards(&mut rng, axes[along].queries(), members);
    let problem = random_problem(&mut rng, members, axes);
    (Problem { bias: rng.random_bool(0.4), ..problem }, along, shards)
}

/// `BURN_NATTEN_TEST_CASES` asks for more.
fn cases(compiles_kernels: bool) -> u64 {
    let asked = std::env::var("BURN_NATTEN_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(if compiles_kernels { 2 } else { 60 })
}

#[test]
fn random_shards_agree_with_the_oracle() {
    for device in devices() {
        for seed in 0..cases(device.compiles_kernels()) {
            let (problem, axis, shards) = random(seed);
            let inputs = problem.inputs(seed);
            let want = expected(&problem, &inputs);
            // Other tiers know as well where the queries of a part stand.
            let strategies = device.strategies();
            let strategy = strategies[(seed as usize / 2) % strategies.len()];
            let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
            for split in [Split::Heads { axis }, Split::Halo { axis }] {
                let team = Team::on(&setup.device, &shards);
                let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
                let what = format!("{} seed {seed} {problem:?} {shards:?}: {split}", device.name);
                agree(&format!("{strategy:?} {what}"), &got, &want, F32);
            }
        }
    }
}

fn same_bits(what: &str, got: &Results, want: &Results) {
    identical(&format!("{what} out"), &got.out, &want.out);
    identical(&format!("{what} lse"), &got.lse, &want.lse);
}

/// Every head is computed as on one device, and every query is, but for the grouping of neighbors on the last axis.
#[test]
fn outputs_are_those_of_one_device_to_the_bit() {
    let strided =
        Axis::Window { length: 13, kernel_size: 4, stride: 3, dilation: 2, is_causal: true };
    for device in quick_devices().into_iter().filter(|device| device.name == "flex") {
        for problem in [problem(&[strided, window(6, 3)]), problem(&[window(13, 5), window(6, 6)])]
        {
            let inputs = problem.inputs(3);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let want = crate::support::run::run(&problem, &inputs, &setup).expect("fits");
            for shards in [&[13][..], &[6, 7], &[1, 12], &[12, 1]] {
                for split in [Split::Heads { axis: 0 }, Split::Halo { axis: 0 }] {
                    let team = Team::on(&setup.device, shards);
                    let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
                    same_bits(&format!("{} {shards:?} {split}", device.name), &got, &want);
                    let query = |results: &Results| {
                        results.gradients.clone().expect("asked for").query.clone()
                    };
                    identical("dq", &query(&got), &query(&want));
                    if matches!(split, Split::Heads { .. }) {
                        let [got, want] = [&got, &want].map(|results| results.gradients.clone());
                        let (got, want) = (got.expect("asked for"), want.expect("asked for"));
                        for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                            identical(name, got, want);
                        }
                    }
                }
            }
        }
    }
}

/// Shards that are shorter than the window, so that keys come from members further away.
#[test]
fn windows_may_be_wider_than_shards() {
    for device in quick_devices() {
        let problem = Problem { bias: true, additional: Some(2), ..problem(&[window(11, 9)]) };
        let inputs = problem.inputs(5);
        let want = expected(&problem, &inputs);
        let setup = Setup::new(&device.device).loss(Loss::Both);
        let team = Team::on(&setup.device, &[2, 3, 1, 5]);
        let split = Split::Halo { axis: 0 };
        let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
        agree(device.name, &got, &want, F32);
    }
}

/// Whoever wants one gradient gets it, whatever else is tracked; and who wants none.
#[test]
fn gradients_come_one_by_one() {
    let device = burn::tensor::Device::flex();
    let problem = Problem { bias: true, additional: Some(2), ..problem(&[window(11, 5)]) };
    let inputs = problem.inputs(6);
    let want = expected(&problem, &inputs);
    for split in [Split::Heads { axis: 0 }, Split::Halo { axis: 0 }] {
        for wanted in 0..5 {
            let tracked = std::array::from_fn(|place| place == wanted);
            for loss in [Loss::Out, Loss::Lse, Loss::Both] {
                // The logsumexp has no gradient of the value.
                if loss == Loss::Lse && wanted == 2 {
                    continue;
                }
                let setup = Setup::new(&device).loss(loss).tracked(tracked);
                let team = Team::on(&setup.device, &[4, 7]);
                let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
                let gradients = got.gradients.expect("asked for").named().map(|(_, g)| g.clone());
                if loss == Loss::Both {
                    let want = want.gradients.clone().expect("asked for");
                    let want = want.named().map(|(_, gradient)| gradient.clone());
                    for (got, want) in
                        gradients.iter().zip(&want).filter(|(got, _)| !got.is_empty())
                    {
                        crate::support::check::close(&format!("{split} {wanted}"), got, want, F32);
                    }
                }
                assert!(gradients.iter().any(|gradient| !gradient.is_empty()));
            }
        }
        let setup = Setup::new(&device);
        let team = Team::on(&device, &[4, 7]);
        let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
        assert!(got.gradients.is_none());
    }
}

/// In f64, where nothing hides in rounding.
#[test]
fn f64_is_computed_in_f64() {
    for seed in 100..116 {
        let (problem, axis, shards) = random(seed);
        let inputs = problem.inputs(seed);
        let want = expected(&problem, &inputs);
        for device in quick_devices().into_iter().filter(|device| device.supports(DType::F64)) {
            if device.compiles_kernels() {
                continue;
            }
            let setup = Setup::new(&device.device).dtype(DType::F64).loss(Loss::Both);
            for split in [Split::Heads { axis }, Split::Halo { axis }] {
                let team = Team::on(&setup.device, &shards);
                let got = run(&problem, &inputs, &setup, (&team, split)).expect("fits");
                agree(&format!("{problem:?} {shards:?} {split}"), &got, &want, 1e-12);
            }
        }
    }
}
