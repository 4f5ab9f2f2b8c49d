//! f16 and bf16, with lists given: the error is at most twice that of rounding a right answer.
//!
//! As for the other operators, the baseline is computed in f64 from inputs as the type has them, and its results are rounded to the
//! type; what any implementation stores on the way is rounded too: compressed keys and values, the outputs of the
//! branches, from which the backward pass starts, and what this hands to each branch.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{Strategy, compress_tokens};
use half::{bf16, f16};
use rstest::rstest;

use super::cases::{Array, Case, Leaf, Results, Setup, cases};
use crate::support::check::{F32, close, errors, magnitude};
use crate::support::devices;
use crate::support::run::{round, tensor, values};

const DTYPE: DType = DType::F64;

/// A tensor as a half type has it.
fn stored<const D: usize>(exact: Tensor<D>, dtype: DType) -> Tensor<D> {
    let device = exact.device();
    tensor(&round(dtype, &values(exact.clone())), exact.dims(), &device, DTYPE).detach()
}

/// Compressed keys, or values, and the leaves that they come from.
fn compressed(case: &Case, name: &str, setup: &Setup) -> (Tensor<4>, Vec<Leaf>) {
    let mut leaves = vec![];
    let own = if case.shared_kv { name.to_string() } else { format!("{name}_cmp") };
    let tokens = case.leaf(&own, setup, &mut leaves);
    let pooling = case.pooling(&format!("pool_{name}"), setup, &mut leaves);
    (compress_tokens(tokens, &pooling, &case.options.build(Strategy::Auto)), leaves)
}

/// Outputs and gradients of stored compressed tokens, by stored outputs of the branches.
fn baseline(case: &Case, dtype: DType) -> Results {
    let setup = Setup::new(&Device::flex(), DTYPE, Strategy::Auto);
    let pooled = ["k", "v"].map(|name| (name, compressed(case, name, &setup)));
    let mut with_blocks = case.clone();
    for (name, (blocks, _)) in &pooled {
        let (shape, values) = (blocks.dims().to_vec(), values(stored(blocks.clone(), dtype)));
        with_blocks.tensors.insert(format!("{name}c"), Array { shape, values });
    }
    let setup = Setup { own: true, compressed: true, lists: true, ..setup };
    let (output, leaves) = with_blocks.forward(&setup).expect("a valid problem");
    let dout = case.tensor::<4>("dout", &setup);
    let [batch, rows, heads, _] = dout.dims();
    let gates = match case.gate.as_str() {
        "given" => case.tensor::<4>("gates", &setup),
        // The type has no third.
        _ => {
            let third = round(dtype, &[1.0 / 3.0])[0];
            Tensor::<4>::full([batch, rows, heads, 3], third, (&setup.device, DTYPE))
        }
    };
    let (mut out, mut dgates) = (dout.zeros_like(), vec![]);
    let mut loss = case.loss_of_lse(&output, &setup);
    for (index, branch) in output.branches.into_array().into_iter().enumerate() {
        let gate = gates.clone().narrow(3, index, 1);
        let rounded = stored(branch.out.clone(), dtype);
        out = out + rounded.clone() * gate.clone();
        dgates.push((rounded.clone() * dout.clone()).sum_dim(3));
        // What each branch is handed has the type, too.
        let dout = stored(dout.clone() * gate, dtype);
        // The backward pass reads the output in `dout . out - dlse` alone.
        let off = ((rounded - branch.out.clone().detach()) * dout.clone()).sum_dim(3);
        let is_blind = branch.logsumexp.clone().equal_elem(f32::NEG_INFINITY);
        let lse = branch.logsumexp.mask_fill(is_blind, 0.0);
        loss = loss + (branch.out * dout).sum() - (lse * off.squeeze_dim::<3>(3)).sum();
    }
    let gradients = loss.backward();
    let mut results = Results::new();
    results.insert("out".into(), values(out));
    if case.gate == "given" {
        results.insert("dgates".into(), values(Tensor::cat(dgates, 3)));
    }
    for leaf in leaves.iter().filter(|leaf| leaf.name != "dgates") {
        results.extend(leaf.gradient(&gradients).map(|values| (leaf.name.clone(), values)));
    }
    for (name, (blocks, leaves)) in pooled {
        let gradient = results.remove(&format!("d{name}c")).expect("it is tracked");
        let gradient = tensor::<4>(&gradient, blocks.dims(), &setup.device, DTYPE);
        let gradients = (blocks * gradient).sum().backward();
        for leaf in leaves {
            let gradient = leaf.gradient(&gradients).expect("it is tracked");
            let is_tokens = !leaf.name.starts_with("dpool");
            let place = if is_tokens { format!("d{name}_cmp") } else { leaf.name };
            results.insert(place, gradient);
        }
        if case.shared_kv {
            let parts =
                ["cmp", "slc", "win"].map(|branch| results.remove(&format!("d{name}_{branch}")));
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            let sum = (0..parts[0].len()).map(|at| parts.iter().map(|part| part[at]).sum());
            results.insert(format!("d{name}"), sum.collect());
        }
    }
    results
}

#[rstest]
fn half_types_are_as_good_as_rounding(#[values(DType::F16, DType::BF16)] dtype: DType) {
    let half_ulp = 0.5
        * match dtype {
            DType::F16 => f16::EPSILON.to_f64(),
            _ => bf16::EPSILON.to_f64(),
        };
    // Packed sequences are sequences, and gates from queries are the tests' own.
    let is_alone = |case: &Case| case.cu_seqlens.is_none() && case.gate != "query";
    for case in cases().into_iter().filter(is_alone) {
        let tokens = case.tensors.get("k").or(case.tensors.get("k_cmp")).expect("keys").shape[1];
        if case.options.build(Strategy::Auto).compressed_blocks(tokens) == 0 {
            continue;
        }
        let case = case.rounded(dtype);
        let exact = Setup::new(&Device::flex(), DTYPE, Strategy::Auto);
        let exact = case.run(&Setup { lists: true, ..exact });
        let baseline = baseline(&case, dtype);
        let ways: &[bool] = if case.has_nonnegative_gates() { &[false, true] } else { &[false] };
        let devices = devices().into_iter().filter(|device| device.supports(dtype));
        let runs =
            devices.flat_map(|device| ways.iter().map(move |known| (device.clone(), *known)));
        for (device, nonnegative) in runs {
            let setup = Setup::new(&device.device, dtype, Strategy::Auto);
            let got = case.run(&Setup { lists: true, nonnegative, ..setup });
            let gates = if nonnegative { "known gates" } else { "any gates" };
            let what =
                |name: &str| format!("{} {dtype:?} {} {gates} {name}", device.name, case.name);
            for branch in ["slc", "win"] {
                let name = format!("lse_{branch}");
                close(&what(&name), &got[&name], &exact[&name], F32);
            }
            for (name, baseline) in &baseline {
                let (got, exact) = (&got[name], &exact[name]);
                let (square, max) = errors(got, exact);
                let (base_square, base_max) = errors(&round(dtype, baseline), exact);
                let base_max = base_max.max(half_ulp * magnitude(exact));
                assert!(
                    square <= 2.0 * base_square && max <= 2.0 * base_max,
                    "{}: rms {square:.2e} of {base_square:.2e}, worst {max:.2e} of {base_max:.2e}",
                    what(name)
                );
            }
        }
    }
}
