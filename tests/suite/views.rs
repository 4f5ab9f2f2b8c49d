//! Inputs and cotangents that are views, in every type and tier: cropped along an axis, with NaN beyond, or with two axes
//! exchanged. They give what contiguous tensors of the same values give.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{
    AttentionOptions, NeighborhoodOptions, Strategy, try_attention, try_na1d, try_na2d, try_na3d,
};

use super::relations::plain;
use crate::support::check::close_to_unit;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Results, Setup, options, round, rounded, run, tensor, values};
use crate::support::{TestDevice, devices};

/// How a tensor lies in memory.
#[derive(Clone, Copy, Debug)]
enum View {
    /// The middle of a longer axis.
    Crop(usize),
    /// With two axes exchanged.
    Swap(usize, usize),
}

/// A tensor of these values that is a view.
fn view<const D: usize>(
    values: &[f64],
    shape: [usize; D],
    view: View,
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    let contiguous = tensor::<D>(values, shape, device, dtype);
    match view {
        View::Crop(axis) => {
            let mut edge = shape;
            edge[axis] = 1;
            let edge = Tensor::<D>::full(edge, f32::NAN, (device, dtype));
            let whole = Tensor::cat(vec![edge.clone(), contiguous, edge], axis);
            whole.narrow(axis, 1, shape[axis])
        }
        // The product is a tensor of its own in the exchanged order.
        View::Swap(a, b) => (contiguous.swap_dims(a, b) * 1.0).swap_dims(a, b),
    }
}

/// A term of a loss whose gradient, the `upstream` one, arrives as a view.
fn term<const D: usize>(out: Tensor<D>, upstream: Tensor<D>, view: View) -> Tensor<1> {
    match view {
        View::Crop(axis) => {
            let mut edge = out.dims();
            edge[axis] = 1;
            let edge = Tensor::<D>::ones(edge, (&out.device(), out.dtype()));
            let around = |tensor| Tensor::cat(vec![edge.clone(), tensor, edge.clone()], axis);
            (around(out) * around(upstream)).sum()
        }
        View::Swap(a, b) => ((out.swap_dims(a, b)) * (upstream.swap_dims(a, b) * 1.0)).sum(),
    }
}

/// Runs a problem on views, by an operator of `N` axes on tensors of rank `D`.
fn run_views<const N: usize, const D: usize>(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    [of_inputs, of_cotangent]: [Option<View>; 2],
    like: &Results,
) -> Results {
    let (ad, dtype) = (setup.device.clone(), setup.dtype);
    let Problem { batch, heads, heads_kv, dim, dim_v, .. } = *problem;
    let space = |length: fn(&Axis) -> usize| problem.axes.iter().map(length).collect::<Vec<_>>();
    let (queries, keys) = (space(Axis::queries), space(Axis::keys));
    let shape = |space: &[usize], heads: usize, dim: usize| -> [usize; D] {
        [&[batch], space, &[heads, dim]].concat().try_into().expect("rank of the operator")
    };
    let leaf = |values: &[f64], shape: [usize; D]| {
        let leaf = match of_inputs {
            Some(how) => view(values, shape, how, &ad, dtype),
            None => tensor(values, shape, &ad, dtype),
        };
        leaf.detach().require_grad()
    };
    let query = leaf(&inputs.query, shape(&queries, heads, dim));
    let key = leaf(&inputs.key, shape(&keys, heads_kv, dim));
    let value = leaf(&inputs.value, shape(&keys, heads_kv, dim_v));
    let out = attend::<N, D>(problem, setup.strategy, [&query, &key, &value]);
    let upstream = tensor(&inputs.grad_out, out.dims(), &ad, dtype);
    let loss = match of_cotangent {
        Some(how) => term(out.clone(), upstream, how),
        None => (out.clone() * upstream).sum(),
    };
    let tape = loss.backward();
    let mut results = like.clone();
    let gradients = results.gradients.as_mut().expect("backward");
    let [dq, dk, dv] = [query, key, value].map(|leaf| values(leaf.grad(&tape).expect("tracked")));
    (gradients.query, gradients.key, gradients.value) = (dq, dk, dv);
    results.out = values(out);
    results
}

fn attend<const N: usize, const D: usize>(
    problem: &Problem,
    strategy: Strategy,
    [query, key, value]: [&Tensor<D>; 3],
) -> Tensor<D> {
    // Of the four operators, whose ranks the compiler cannot tell from `N`.
    fn cast<const D: usize, const E: usize>(tensor: &Tensor<D>) -> Tensor<E> {
        Tensor::from_dispatch(tensor.clone().into_dispatch())
    }
    let out = match (&problem.axes[0], N) {
        (Axis::Dense { is_causal, .. }, _) => {
            let options = AttentionOptions::new().with_causal(*is_causal).with_strategy(strategy);
            let output = try_attention(cast(query), cast(key), cast(value), options);
            output.expect("valid").out.into_dispatch()
        }
        (_, 1) => {
            let options: NeighborhoodOptions<1> = options(problem).with_strategy(strategy);
            let output = try_na1d(cast(query), cast(key), cast(value), options);
            output.expect("valid").out.into_dispatch()
        }
        (_, 2) => {
            let options: NeighborhoodOptions<2> = options(problem).with_strategy(strategy);
            let output = try_na2d(cast(query), cast(key), cast(value), options);
            output.expect("valid").out.into_dispatch()
        }
        _ => {
            let options: NeighborhoodOptions<3> = options(problem).with_strategy(strategy);
            let output = try_na3d(cast(query), cast(key), cast(value), options);
            output.expect("valid").out.into_dispatch()
        }
    };
    Tensor::from_dispatch(out)
}

/// Views of tensors of a rank: of each axis a crop, and every exchange of two.
fn all_views(rank: usize) -> Vec<View> {
    let swaps = (0..rank).flat_map(|b| (0..b).map(move |a| View::Swap(a, b)));
    (0..rank).map(View::Crop).chain(swaps).collect()
}

fn check<const N: usize, const D: usize>(device: &TestDevice, problem: &Problem, dtype: DType) {
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    let (strategies, tolerance) = match is_half {
        // Kernels for other layouts may sum in another order, and round once more or less.
        true => (device.half_strategies(), 2e-2),
        false => (device.strategies(), 1e-5),
    };
    let mut inputs = problem.inputs(41);
    if is_half {
        inputs = rounded(inputs, dtype);
        inputs.grad_out = round(dtype, &inputs.grad_out);
    }
    for strategy in strategies {
        let setup = Setup::new(&device.device).strategy(strategy).dtype(dtype).loss(Loss::Out);
        let want = run(problem, &inputs, &setup).expect("valid");
        let step = device.sampling(if is_half { 1 } else { 3 });
        for how in all_views(D).into_iter().step_by(step) {
            for pair in [[Some(how), None], [None, Some(how)]] {
                let got = run_views::<N, D>(problem, &inputs, &setup, pair, &want);
                let what = format!("{} {strategy:?} {dtype:?} {pair:?} {problem:?}", device.name);
                close_to_unit(&format!("{what} out"), &got.out, &want.out, tolerance, 1.0);
                let gradients =
                    [&got, &want].map(|results| results.gradients.as_ref().expect("backward"));
                let [got, want] = gradients.map(|gradients| gradients.named());
                for ((name, got), (_, want)) in got.into_iter().zip(want) {
                    close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
                }
            }
        }
    }
}

fn window(length: usize, kernel_size: usize) -> Axis {
    Axis::Window { length, kernel_size, stride: 1, dilation: 1, is_causal: false }
}

/// Windows that cover the space, windows that do not, and axes of one line.
fn everywhere(dtypes: &[DType]) {
    for device in devices() {
        for dtype in dtypes.iter().copied().filter(|dtype| device.supports(*dtype)) {
            let of = |axes| Problem { heads_kv: 2, dim: 16, dim_v: 16, ..plain(axes) };
            let dense = Axis::Dense { queries: 10, keys: 6, is_causal: false };
            check::<1, 4>(&device, &of(vec![dense]), dtype);
            check::<1, 4>(&device, &of(vec![window(7, 7)]), dtype);
            check::<2, 5>(&device, &of(vec![window(8, 8), window(8, 8)]), dtype);
            check::<2, 5>(&device, &of(vec![window(5, 5), window(6, 3)]), dtype);
            check::<3, 6>(&device, &of(vec![window(2, 2), window(3, 3), window(4, 4)]), dtype);
            let single =
                Problem { heads: 1, heads_kv: 1, batch: 1, ..of(vec![window(4, 4), window(5, 5)]) };
            check::<2, 5>(&device, &single, dtype);
        }
    }
}

#[test]
fn views_are_like_contiguous_tensors() {
    everywhere(&[DType::F32]);
}

#[test]
fn views_of_half_types_are_like_contiguous_tensors() {
    everywhere(&[DType::F16, DType::BF16]);
}

/// Vectors of one element whose axis was exchanged with another: contiguous, by strides that say otherwise.
#[test]
fn vectors_of_one_element_have_any_stride() {
    for device in devices() {
        let problem = Problem { dim: 1, dim_v: 1, ..plain(vec![window(6, 3), window(5, 5)]) };
        for view in [View::Swap(3, 4), View::Swap(1, 4), View::Swap(0, 4)] {
            let inputs = problem.inputs(43);
            let setup = Setup::new(&device.device).loss(Loss::Out);
            let want = run(&problem, &inputs, &setup).expect("valid");
            let got = run_views::<2, 5>(&problem, &inputs, &setup, [Some(view); 2], &want);
            close_to_unit(&format!("{} {view:?}", device.name), &got.out, &want.out, 1e-5, 1.0);
        }
    }
}
