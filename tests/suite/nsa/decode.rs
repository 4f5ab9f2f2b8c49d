//! Decoding gives the rows of the whole.

use burn::tensor::{DType, Tensor};
use burn_natten::nsa::{BranchTokens, PerBranch};
use burn_natten::{
    NativeSparseAttentionOptions, NativeSparseCache, NativeSparseOutput, Pooling, Strategy,
    native_sparse_attention,
};

use super::random::{Sizes, many_options, options};
use crate::support::check::{F32, close, identical};
use crate::support::quick_devices;
use crate::support::run::{tensor, values};

/// In steps of these sizes, the last of which is repeated.
fn steps(tokens: usize, sizes: &[usize]) -> Vec<(usize, usize)> {
    let (mut start, mut steps) = (0, vec![]);
    let last = sizes[sizes.len() - 1];
    for size in sizes.iter().copied().chain(std::iter::repeat(last)) {
        if start == tokens {
            break;
        }
        let size = size.min(tokens - start);
        steps.push((start, size));
        start += size;
    }
    steps
}

/// Each branch has other keys or values, if it has its own.
fn branches(tensor: Tensor<4>, has_own: bool) -> BranchTokens {
    match has_own {
        false => tensor.into(),
        true => PerBranch {
            compressed: tensor.clone() * 0.5,
            selected: tensor.clone(),
            window: tensor * -1.0,
        }
        .into(),
    }
}

fn check(
    what: &str,
    sizes: &Sizes,
    tensors: &[Tensor<4>; 4],
    own: [bool; 2],
    options: &NativeSparseAttentionOptions,
    lengths: &[usize],
) {
    let [q, k, v, g] = tensors.clone();
    let whole =
        native_sparse_attention(q, branches(k, own[0]), branches(v, own[1]), g, options.clone());
    let mut cache = NativeSparseCache::new(options.clone());
    let mut rows = vec![];
    for (start, count) in steps(sizes.tokens, lengths) {
        let [q, k, v, g] = tensors.clone().map(|tensor| tensor.narrow(1, start, count));
        rows.push(cache.append(q, branches(k, own[0]), branches(v, own[1]), g));
        assert_eq!(cache.tokens(), start + count);
    }
    close(what, &values(Tensor::cat(rows, 1)), &values(whole), F32);
}

#[test]
fn steps_have_the_rows_of_the_whole() {
    let sizes = Sizes { batch: 2, tokens: 53, ..Sizes::default() };
    let inputs = sizes.inputs(3);
    for device in quick_devices() {
        let tensors = sizes.tensors(&inputs, &device.device, DType::F32);
        for (name, options) in many_options().into_iter().step_by(device.sampling(6)) {
            // Token by token; a prompt first; chunks that begin inside tiles.
            for lengths in [&[1][..], &[37, 1], &[3, 19, 7]] {
                for own in [[false; 2], [true; 2], [true, false], [false, true]] {
                    let what = format!("{} {name} {lengths:?} own {own:?}", device.name);
                    check(&what, &sizes, &tensors, own, &options, lengths);
                }
            }
        }
    }
}

#[test]
fn with_learned_compression() {
    let sizes = Sizes { tokens: 40, dim_v: 4, ..Sizes::default() };
    let inputs = sizes.inputs(4);
    for device in quick_devices() {
        let tensors = sizes.tensors(&inputs, &device.device, DType::F32);
        let weights = Sizes { batch: 2, tokens: 8, heads_kv: 4, dim: 4, ..sizes }.inputs(5).key;
        let pool =
            || Pooling::Linear(tensor(&weights, [2, 8, 4, 4], &device.device, DType::F32) * 0.1);
        let options = options().with_pooling(pool(), pool());
        check(device.name, &sizes, &tensors, [true; 2], &options, &[1]);
    }
}

/// Memory is that of the tokens, up to a factor, and of the window no more than it needs.
#[test]
fn a_long_prompt_is_not_kept_for_its_end() {
    let sizes = Sizes { tokens: 600, heads: 1, heads_kv: 1, dim: 2, dim_v: 2, ..Sizes::default() };
    let inputs = sizes.inputs(6);
    for device in quick_devices() {
        let [q, k, v, g] = sizes.tensors(&inputs, &device.device, DType::F32);
        let own = |tensor: Tensor<4>| PerBranch {
            compressed: tensor.clone(),
            selected: tensor.clone(),
            window: tensor,
        };
        let mut cache = NativeSparseCache::new(options());
        cache.append(q, own(k), own(v), g);
        // Twice the tokens, and twice a quarter of them that is compressed, for keys and for values; and little else.
        assert!(cache.capacity() <= 2 * (1200 + 300 + 100), "{}", cache.capacity());
    }
}

/// What a step gives: outputs and logsumexps of all, and lists.
fn all_of(output: NativeSparseOutput) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, Vec<f64>) {
    let branches = output.branches.into_array();
    let logsumexps = branches.clone().map(|branch| values(branch.logsumexp)).to_vec();
    let mut outs = vec![values(output.out)];
    outs.extend(branches.map(|branch| values(branch.out)));
    (outs, logsumexps, values(output.blocks.float()))
}

/// Where native kernels compute all steps of a token at once, as they do in half types, they give what the steps give one by one.
#[test]
fn tokens_of_half_types_are_those_of_the_steps() {
    let sizes = Sizes { batch: 3, tokens: 78, heads: 6, heads_kv: 2, dim: 32, dim_v: 16 };
    let inputs = sizes.inputs(7);
    let weights =
        Sizes { batch: 2, tokens: 8, heads_kv: 32, dim: 32, dim_v: 16, ..sizes }.inputs(8);
    for device in quick_devices() {
        for dtype in [DType::F16, DType::BF16].into_iter().filter(|dtype| device.supports(*dtype)) {
            let tensors = sizes.tensors(&inputs, &device.device, dtype);
            // Blocks of these are made by steps, whoever appends the tokens between them.
            let key = tensor(&weights.key, [2, 8, 32, 32], &device.device, dtype) * 0.05;
            let value =
                tensor(&weights.value[..2 * 8 * 16 * 16], [2, 8, 16, 16], &device.device, dtype);
            let learned =
                options().with_pooling(Pooling::Linear(key), Pooling::Linear(value * 0.1));
            let (mut lists, mut others) = (0, 0);
            let mut all = many_options();
            all.insert(0, ("learned", learned));
            for (number, (name, options)) in all.into_iter().step_by(device.sampling(5)).enumerate()
            {
                for side in [0, 1] {
                    // From nothing, or behind a prompt; each with memory of its own, or one of both.
                    let lengths = [&[1][..], &[60, 1]][(number + side) % 2];
                    let own = [[false; 2], [true; 2], [true, false], [false, true]]
                        [(number + 2 * side) % 4];
                    let step = options.clone().with_strategy(Strategy::Reference);
                    let mut caches = [options.clone(), step].map(NativeSparseCache::new);
                    for (start, count) in steps(sizes.tokens, lengths) {
                        let [q, k, v, g] =
                            tensors.clone().map(|tensor| tensor.narrow(1, start, count));
                        let [at_once, by_steps] = caches.each_mut().map(|cache| {
                            let [q, k, v, g] = [&q, &k, &v, &g].map(Tensor::clone);
                            let (k, v) = (branches(k, own[0]), branches(v, own[1]));
                            all_of(cache.try_append(q, k, v, g).expect("a token"))
                        });
                        lists += 1;
                        if at_once.2 != by_steps.2 {
                            // Rounding may choose.
                            others += 1;
                            continue;
                        }
                        let what = format!("{} {dtype:?} {name} own {own:?} {start}", device.name);
                        for (got, expected) in at_once.0.iter().zip(&by_steps.0) {
                            close(&what, got, expected, 0.02);
                        }
                        for (got, expected) in at_once.1.iter().zip(&by_steps.1) {
                            close(&what, got, expected, 1e-3);
                        }
                    }
                }
            }
            assert!(others * 50 <= lists, "{}: {others} of {lists} lists differ", device.name);
        }
    }
}

/// Two clones of a cache go on with tokens of their own.
#[test]
fn clones_do_not_see_each_other() {
    let sizes = Sizes { batch: 2, tokens: 60, heads: 4, heads_kv: 2, dim: 16, dim_v: 16 };
    let inputs = [9, 10].map(|seed| sizes.inputs(seed));
    for device in quick_devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16]
            .into_iter()
            .filter(|dtype| device.supports(*dtype))
        {
            for own in [false, true] {
                let all = inputs.each_ref().map(|of| sizes.tensors(of, &device.device, dtype));
                let append = |cache: &mut NativeSparseCache, of: usize, start, count| {
                    let [q, k, v, g] = all[of].clone().map(|tensor| tensor.narrow(1, start, count));
                    values(cache.append(q, branches(k, own), branches(v, own), g))
                };
                let prompt = || {
                    let mut cache = NativeSparseCache::new(options());
                    append(&mut cache, 0, 0, 37);
                    append(&mut cache, 0, 37, 1);
                    cache
                };
                let mut alone = [prompt(), prompt()];
                let cache = prompt();
                let mut clones = [cache.clone(), cache];
                for token in 38..sizes.tokens {
                    for (of, (clone, alone)) in clones.iter_mut().zip(&mut alone).enumerate() {
                        let what = format!("{} {dtype:?} own {own} {of} {token}", device.name);
                        let (got, expected) =
                            (append(clone, of, token, 1), append(alone, of, token, 1));
                        identical(&what, &got, &expected);
                    }
                }
            }
        }
    }
}
