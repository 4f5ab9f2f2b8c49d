//! Dense attention over shards.

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::parallel::{DenseSplit, try_attention_sharded};
use burn_natten::{AttentionOptions, CausalAlignment, try_attention};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::run::{Team, agree, expected, random_problem, random_shards, run_dense};
use crate::support::check::{F32, close};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Setup, values};
use crate::support::{devices, quick_devices};

const SPLITS: [DenseSplit; 3] = [DenseSplit::Heads, DenseSplit::Gather, DenseSplit::Ring];

/// A problem, and the shards of its queries and of its keys.
fn random(seed: u64) -> (Problem, [Vec<usize>; 2]) {
    let mut rng = StdRng::seed_from_u64(seed);
    let members = rng.random_range(1..=4);
    let is_causal = rng.random();
    let [queries, keys] = match rng.random_range(0..3) {
        0 => [20; 2],
        _ => [(); 2].map(|()| rng.random_range(members..=24)),
    };
    let axes = vec![Axis::Dense { queries, keys, is_causal }];
    let problem = random_problem(&mut rng, members, axes);
    let shards = [queries, keys].map(|length| random_shards(&mut rng, length, members));
    (problem, shards)
}

#[test]
fn random_shards_agree_with_the_oracle() {
    for device in devices() {
        let cases = if device.compiles_kernels() { 2 } else { 40 };
        for seed in 0..cases {
            let (problem, [shards, key_shards]) = random(seed);
            let inputs = problem.inputs(seed);
            let want = expected(&problem, &inputs);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let Axis::Dense { is_causal, .. } = problem.axes[0] else { unreachable!("dense") };
            let options = AttentionOptions::new().with_causal(is_causal);
            let team = Team { key_shards, ..Team::on(&setup.device, &shards) };
            for split in SPLITS {
                let got = run_dense(&problem, &inputs, &setup, &options, (&team, split));
                let what = format!("{} seed {seed} {problem:?} {team:?}: {split}", device.name);
                agree(&what, &got.expect("fits"), &want, F32);
            }
        }
    }
}

/// The oracle aligns at the end; here queries stand at the first keys, and those behind the last key see all of them.
#[test]
fn causality_may_be_aligned_at_the_start() {
    let device = Device::flex();
    let random = |tokens| Tensor::<4>::random([1, tokens, 4, 8], Distribution::Default, &device);
    let shards = |tensor: &Tensor<4>, lengths: &[usize]| {
        tensor.clone().split_with_sizes(lengths.to_vec(), 1)
    };
    for ((queries, of_query), (keys, of_key)) in
        [((9, [4, 5]), (6, [3, 3])), ((6, [1, 5]), (9, [6, 3])), ((7, [6, 1]), (2, [1, 1]))]
    {
        let (query, key) = (random(queries), random(keys));
        let options =
            AttentionOptions::new().with_causal(true).with_causal_alignment(CausalAlignment::Start);
        let alone = try_attention(query.clone(), key.clone(), key.clone(), options.clone());
        let alone = alone.expect("fits");
        for split in SPLITS {
            let (query, key) = (shards(&query, &of_query), shards(&key, &of_key));
            let members = try_attention_sharded(query, key.clone(), key, options.clone(), split);
            let (outs, logsumexps): (Vec<_>, Vec<_>) =
                members.expect("fits").into_iter().map(|m| (m.out, m.logsumexp)).unzip();
            let what = format!("{split} {queries} {keys}");
            close(&what, &values(Tensor::cat(outs, 1)), &values(alone.out.clone()), F32);
            let want = values(alone.logsumexp.clone());
            close(&what, &values(Tensor::cat(logsumexps, 1)), &want, F32);
        }
    }
}

/// With more queries than keys, aligned at the end, the first members see nothing: zeros, `-inf`, and no gradient.
#[test]
fn members_may_see_nothing() {
    let axes = vec![Axis::Dense { queries: 16, keys: 4, is_causal: true }];
    let sizes = Problem {
        batch: 1,
        heads: 4,
        heads_kv: 4,
        dim: 8,
        dim_v: 8,
        additional: None,
        scale: None,
        bias: false,
        axes,
    };
    for device in quick_devices() {
        for additional in [None, Some(2)] {
            let problem = Problem { additional, ..sizes.clone() };
            let inputs = problem.inputs(4);
            let want = expected(&problem, &inputs);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let options = AttentionOptions::new().with_causal(true);
            let team = Team { key_shards: vec![1; 4], ..Team::on(&setup.device, &[4; 4]) };
            for split in SPLITS {
                let got = run_dense(&problem, &inputs, &setup, &options, (&team, split));
                let got = got.expect("fits");
                agree(&format!("{} {additional:?} {split}", device.name), &got, &want, F32);
                if additional.is_none() {
                    assert!(got.lse[0] == f64::NEG_INFINITY && got.out[0] == 0.0);
                }
            }
        }
    }
}

/// What a causal member does not see reaches it in no way: not even as NaN.
#[test]
fn causal_members_skip_what_is_ahead() {
    let device = Device::flex().autodiff();
    let shard = || Tensor::<4>::random([1, 5, 2, 8], Distribution::Default, &device);
    let spoiled = || Tensor::<4>::full([1, 5, 2, 8], f32::NAN, &device);
    for split in SPLITS {
        let first = shard().require_grad();
        let members = vec![first.clone(), shard(), spoiled()];
        let members = match split {
            // Two heads for two members.
            DenseSplit::Heads => vec![first.clone(), spoiled()],
            _ => members,
        };
        let out = try_attention_sharded(
            members.clone(),
            members.clone(),
            members,
            AttentionOptions::new().with_causal(true),
            split,
        )
        .expect("fits");
        let seen = out[0].out.clone();
        let gradients = seen.clone().sum().backward();
        let gradient = first.grad(&gradients).expect("is tracked");
        // With heads, the spoiled tokens are on the tape, times zero.
        let is_finite = |tensor: Tensor<4>| values(tensor).iter().all(|x| x.is_finite());
        assert!(is_finite(seen), "{split}");
        assert!(is_finite(gradient) || split == DenseSplit::Heads, "{split}");
    }
}
