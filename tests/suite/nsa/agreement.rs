//! Random problems against the oracle: lists, outputs, and gradients along random directions.

use std::cell::Cell;

use burn::tensor::{DType, Device, Int, Tensor};
use burn_natten::{Strategy as Tier, try_native_sparse_attention};
use proptest::prelude::*;

use super::oracle::{Lists, Problem};
use super::random::{Inputs, Sizes};
use crate::suite::properties::{asked_cases, check_cases};
use crate::support::check::{F32, close_to_unit, errors, magnitude};
use crate::support::devices;
use crate::support::run::{tensor, values};

fn problems() -> impl Strategy<Value = Problem> {
    let sizes = (1..3usize, 1..70usize, 1..3usize, 1..5usize, 1..7usize, 1..6usize);
    let sizes = sizes.prop_map(|(batch, tokens, heads_kv, group, dim, dim_v)| {
        let heads = heads_kv * group;
        Sizes { batch, tokens, heads, heads_kv, dim, dim_v }
    });
    let blocks = (1..6usize, 1..5usize, 1..5usize, any::<prop::sample::Index>());
    let counts = (0..3usize, 1..4usize, 0..4usize, 0..80usize);
    let thinned = prop_oneof![Just(None), (0..3usize).prop_map(Some)];
    let rest = (thinned, 1..4usize, 0..4usize, -1.0..1.0);
    (sizes, blocks, counts, rest).prop_map(|(sizes, blocks, counts, rest)| {
        let (cmp_stride, reach, length, tile) = blocks;
        let (num_init, num_local, more, window) = counts;
        let (thinned, cmp_group, first, scale) = rest;
        let slc_block = cmp_stride * length;
        let divisors = (1..=slc_block).filter(|tile| slc_block.is_multiple_of(*tile));
        let tiles: Vec<usize> = divisors.chain([2 * slc_block, 3 * slc_block]).collect();
        let query_tile = *tile.get(&tiles);
        let least = num_init + num_local - 1 + (query_tile / slc_block).max(1);
        let filling = (query_tile - 1).div_ceil(cmp_stride).div_ceil(cmp_group) + 1;
        let first = first * query_tile;
        Problem {
            sizes,
            first: if first < sizes.tokens { first } else { 0 },
            cmp_block: cmp_stride * reach,
            cmp_stride,
            slc_block,
            num_selected: least + more,
            num_init,
            num_local,
            window,
            query_tile,
            cmp_top: thinned.map(|more| filling + more),
            cmp_group,
            scale,
        }
    })
}

/// Lists as numbers, for each sample, tile and head of the keys.
fn rows(lists: Tensor<4, Int>) -> Vec<Vec<i64>> {
    let entries = lists.dims()[3];
    let numbers: Vec<i64> = lists.into_data().convert::<i64>().try_to_vec().expect("i64");
    numbers.chunks(entries).map(<[i64]>::to_vec).collect()
}

/// Holds a problem to the oracle. Returns the largest error, in the units that the tolerance has.
fn check(what: &str, problem: &Problem, seed: u64, device: &Device, strategy: Tier) -> f64 {
    const STEP: f64 = 1e-4;
    let inputs = problem.sizes.inputs(seed);
    let device = device.clone().autodiff();
    let leaves =
        problem.sizes.tensors(&inputs, &device, DType::F32).map(|leaf| leaf.require_grad());
    let [query, key, value, gates] = leaves.clone();
    let of_rows = |tensor: Tensor<4>| tensor.narrow(1, problem.first, problem.rows());
    let options = problem.options().with_strategy(strategy);
    let output = try_native_sparse_attention(of_rows(query), key, value, of_rows(gates), options)
        .expect("valid");
    let blocks = rows(output.blocks);
    let cmp_blocks = output.cmp_blocks.map(rows);
    let list = |(at, blocks): (usize, &Vec<i64>)| Lists {
        blocks: blocks.clone(),
        cmp_blocks: cmp_blocks.as_ref().map(|lists| lists[at].clone()),
    };
    let lists: Vec<Lists> = blocks.iter().enumerate().map(list).collect();
    problem.check_lists(what, &inputs, &lists);

    let want = problem.out(&inputs, &lists);
    let cotangent = problem.sizes.inputs(seed + 1).query;
    let cotangent: Vec<f64> = cotangent.into_iter().cycle().take(want.len()).collect();
    let shape = output.out.dims();
    let loss = (output.out.clone() * tensor(&cotangent, shape, &device, DType::F32)).sum();
    let tape = loss.backward();
    let out = values(output.out);
    close_to_unit(&format!("{what} out"), &out, &want, F32, 1.0);
    let mut worst = errors(&out, &want).1 / magnitude(&want).max(1.0);

    let toward = problem.sizes.inputs(seed + 2);
    let toward = [toward.query, toward.key, toward.value, toward.gates];
    for (index, leaf) in leaves.iter().enumerate() {
        let name = ["query", "key", "value", "gates"][index];
        let along = |step: f64| -> f64 {
            let mut moved: Inputs = inputs.clone();
            let all = [&mut moved.query, &mut moved.key, &mut moved.value, &mut moved.gates];
            let place = all.into_iter().nth(index).expect("there are four");
            place.iter_mut().zip(&toward[index]).for_each(|(x, toward)| *x += step * toward);
            problem.out(&moved, &lists).iter().zip(&cotangent).map(|(x, c)| x * c).sum()
        };
        let expected = (along(STEP) - along(-STEP)) / (2.0 * STEP);
        let gradient = values(leaf.grad(&tape).expect("it is tracked"));
        let terms = || gradient.iter().zip(&toward[index]).map(|(x, toward)| x * toward);
        let unit = terms().map(f64::abs).sum::<f64>().max(1.0);
        let error = (terms().sum::<f64>() - expected).abs() / unit;
        assert!(error <= F32, "{what} d{name}: error {error:.1e} of {unit:.1e}");
        worst = worst.max(error);
    }
    worst
}

/// `BURN_NATTEN_TEST_CASES` problems, or as many as tests of properties take. Where kernels are compiled for each, few.
#[test]
fn random_problems_agree_with_the_oracle() {
    for device in devices() {
        let usual = if device.compiles_kernels() { 2 } else { 64 };
        let (cases, worst) = (asked_cases().unwrap_or(usual), Cell::new(0f64));
        check_cases(cases, (problems(), 0..u64::MAX / 2), |(problem, seed)| {
            for strategy in device.strategies() {
                let what = format!("{} {strategy:?} {problem:?}", device.name);
                let error = check(&what, &problem, seed, &device.device, strategy);
                worst.set(worst.get().max(error));
            }
            Ok(())
        });
        println!("{}: {cases} problems, the largest error {:.1e}", device.name, worst.get());
    }
}
