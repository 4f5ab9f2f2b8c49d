//! Both halves of a problem on a device, through the public API.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{
    AttentionError, NeighborhoodOptions, Strategy, try_na1d, try_na1d_av, try_na1d_qk, try_na2d,
    try_na2d_av, try_na2d_qk, try_na3d, try_na3d_av, try_na3d_qk,
};

use super::oracle::{Halves, Results, slots};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{options, tensor, values};

/// The operators of a rank.
pub trait Operators<const D: usize> {
    fn qk(self, query: Tensor<D>, key: Tensor<D>) -> Result<Tensor<D>, AttentionError>;
    fn av(self, weights: Tensor<D>, value: Tensor<D>) -> Result<Tensor<D>, AttentionError>;
    fn fused(self, query: Tensor<D>, key: Tensor<D>, value: Tensor<D>) -> Tensor<D>;
}

macro_rules! operators {
    ($rank:literal, $d:literal, $qk:ident, $av:ident, $fused:ident) => {
        impl Operators<$d> for NeighborhoodOptions<$rank> {
            fn qk(self, query: Tensor<$d>, key: Tensor<$d>) -> Result<Tensor<$d>, AttentionError> {
                $qk(query, key, self)
            }
            fn av(
                self,
                weights: Tensor<$d>,
                value: Tensor<$d>,
            ) -> Result<Tensor<$d>, AttentionError> {
                $av(weights, value, self)
            }
            fn fused(self, query: Tensor<$d>, key: Tensor<$d>, value: Tensor<$d>) -> Tensor<$d> {
                $fused(query, key, value, self).expect("valid").out
            }
        }
    };
}

operators!(1, 4, try_na1d_qk, try_na1d_av, try_na1d);
operators!(2, 5, try_na2d_qk, try_na2d_av, try_na2d);
operators!(3, 6, try_na3d_qk, try_na3d_av, try_na3d);

/// Where and how.
#[derive(Clone, Debug)]
pub struct Setup {
    pub device: Device,
    pub strategy: Strategy,
    pub dtype: DType,
}

impl Setup {
    /// f32, on the device with autodiff.
    pub fn new(device: &Device, strategy: Strategy) -> Self {
        Self { device: device.clone().autodiff(), strategy, dtype: DType::F32 }
    }

    pub fn dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }
}

/// Makes a tensor that lies otherwise of one with the same values.
pub type Lay<'a, const D: usize> = &'a dyn Fn(Tensor<D>) -> Tensor<D>;

/// Runs both halves, forward and backward, of a problem with `N` axes, on tensors and additional tokens that are laid out otherwise.
pub fn run_laid<const N: usize, const D: usize>(
    problem: &Problem,
    halves: &Halves,
    setup: &Setup,
    lay: Lay<'_, D>,
    lay_more: Lay<'_, 4>,
) -> Results
where
    NeighborhoodOptions<N>: Operators<D>,
{
    let Problem { batch, heads, heads_kv, dim, dim_v, additional, .. } = *problem;
    let space: Vec<usize> = problem.axes.iter().map(Axis::queries).collect();
    let shape = |heads: usize, last: usize| -> [usize; D] {
        [&[batch], space.as_slice(), &[heads, last]].concat().try_into().expect("rank")
    };
    let leaf = |values: &[f64], heads: usize, last: usize| {
        tensor(values, shape(heads, last), &setup.device, setup.dtype).require_grad()
    };
    let more = |values: &[f64], dim: usize| {
        additional.map(|count| {
            let shape = [batch, count, heads_kv, dim];
            tensor::<4>(values, shape, &setup.device, setup.dtype).require_grad()
        })
    };
    let window = slots(problem);
    let plain: NeighborhoodOptions<N> = options(problem).with_strategy(setup.strategy);
    // A loss whose gradient comes through the same layout. Slots that are hidden get one as well.
    let term = |out: &Tensor<D>, cotangent: &[f64]| {
        let cotangent = tensor(cotangent, out.dims(), &setup.device, setup.dtype);
        (lay(out.clone()) * lay(cotangent)).sum()
    };

    let query = leaf(&halves.query, heads, dim);
    let key = leaf(&halves.key, heads_kv, dim);
    let keys = more(&halves.more_keys, dim);
    let with_keys = plain.clone().with_additional_kv(keys.clone().map(lay_more), None);
    let scores = with_keys.qk(lay(query.clone()), lay(key.clone())).expect("valid");
    assert_eq!((scores.dims(), scores.dtype()), (shape(heads, window), setup.dtype));
    let tape = term(&scores, &halves.grad_scores).backward();
    let of = |leaf: &Tensor<D>| values(leaf.grad(&tape).expect("tracked"));
    let of_more = |leaf: &Option<Tensor<4>>| match leaf {
        Some(leaf) if leaf.dims()[1] > 0 => values(leaf.grad(&tape).expect("tracked")),
        _ => vec![],
    };
    let (grad_query, grad_key, grad_more_keys) = (of(&query), of(&key), of_more(&keys));

    let weights = leaf(&halves.weights, heads, window);
    let value = leaf(&halves.value, heads_kv, dim_v);
    let more_values = more(&halves.more_values, dim_v);
    let with_values = plain.with_additional_kv(None, more_values.clone().map(lay_more));
    let out = with_values.av(lay(weights.clone()), lay(value.clone())).expect("valid");
    assert_eq!((out.dims(), out.dtype()), (shape(heads, dim_v), setup.dtype));
    let tape = term(&out, &halves.grad_out).backward();
    let of = |leaf: &Tensor<D>| values(leaf.grad(&tape).expect("tracked"));
    let of_more = |leaf: &Option<Tensor<4>>| match leaf {
        Some(leaf) if leaf.dims()[1] > 0 => values(leaf.grad(&tape).expect("tracked")),
        _ => vec![],
    };
    Results {
        scores: values(scores),
        out: values(out),
        grad_query,
        grad_key,
        grad_more_keys,
        grad_weights: of(&weights),
        grad_value: of(&value),
        grad_more_values: of_more(&more_values),
    }
}

/// The same on tensors as they come.
pub fn run(problem: &Problem, halves: &Halves, setup: &Setup) -> Results {
    match problem.axes.len() {
        1 => run_laid::<1, 4>(problem, halves, setup, &|tensor| tensor, &|tensor| tensor),
        2 => run_laid::<2, 5>(problem, halves, setup, &|tensor| tensor, &|tensor| tensor),
        _ => run_laid::<3, 6>(problem, halves, setup, &|tensor| tensor, &|tensor| tensor),
    }
}
