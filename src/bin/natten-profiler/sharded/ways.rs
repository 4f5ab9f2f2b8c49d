//! The ways to compute a problem: on one device, and by every split.

use burn::tensor::{Device, Tensor};
use burn_natten::parallel::{
    DenseSplit, Split, try_attention_sharded, try_na1d_sharded, try_na2d_sharded, try_na3d_sharded,
};
use burn_natten::{
    AttentionError, AttentionOptions, CausalAlignment, NeighborhoodOptions, NeighborhoodOutput,
    try_attention, try_na1d, try_na2d, try_na3d,
};
use burn_natten_kernels::MAX_RANK;

use crate::args::Args;
use crate::request::Request;

/// Query, key and value of each member.
pub type Members<const D: usize> = [Vec<Tensor<D>>; 3];

type Outputs<const D: usize> = Result<Vec<Tensor<D>>, AttentionError>;

/// A way to compute the outputs of all members.
pub struct Way<'a, const D: usize> {
    pub name: String,
    pub devices: &'a [Device],
    /// The axis of the tensors along which tokens lie in shards.
    pub along: usize,
    pub call: Box<dyn Fn(Members<D>) -> Outputs<D> + 'a>,
}

/// An operator on one device.
type Alone<const N: usize, const D: usize, const L: usize> =
    fn(
        Tensor<D>,
        Tensor<D>,
        Tensor<D>,
        NeighborhoodOptions<N>,
    ) -> Result<NeighborhoodOutput<D, L>, AttentionError>;

/// Its twin on several.
type Sharded<const N: usize, const D: usize, const L: usize> =
    fn(
        Vec<Tensor<D>>,
        Vec<Tensor<D>>,
        Vec<Tensor<D>>,
        NeighborhoodOptions<N>,
        Split,
    ) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError>;

pub fn of_one_axis<'a>(request: &Request, args: &Args, devices: &'a [Device]) -> Vec<Way<'a, 4>> {
    windows::<1, 4, 3>(request, args, devices, (try_na1d, try_na1d_sharded))
}

pub fn of_two_axes<'a>(request: &Request, args: &Args, devices: &'a [Device]) -> Vec<Way<'a, 5>> {
    windows::<2, 5, 4>(request, args, devices, (try_na2d, try_na2d_sharded))
}

pub fn of_three_axes<'a>(request: &Request, args: &Args, devices: &'a [Device]) -> Vec<Way<'a, 6>> {
    windows::<3, 6, 5>(request, args, devices, (try_na3d, try_na3d_sharded))
}

fn windows<'a, const N: usize, const D: usize, const L: usize>(
    request: &Request,
    args: &Args,
    devices: &'a [Device],
    (alone, sharded): (Alone<N, D, L>, Sharded<N, D, L>),
) -> Vec<Way<'a, D>> {
    let problem = request.problem;
    let options = request.options::<N>(args);
    let one = options.clone();
    let mut ways = vec![one_device(devices, move |query, key, value| {
        Ok(alone(query, key, value, one.clone())?.out)
    })];
    let axes = &problem.axes[MAX_RANK - N..];
    for axis in (0..N).filter(|axis| axes[*axis].queries >= devices.len()) {
        let by_heads = problem.heads_kv.is_multiple_of(devices.len());
        let heads = by_heads.then_some(Split::Heads { axis });
        for split in [Split::Halo { axis }].into_iter().chain(heads) {
            let options = options.clone();
            let call = move |[query, key, value]: Members<D>| {
                let members = sharded(query, key, value, options.clone(), split)?;
                Ok(members.into_iter().map(|member| member.out).collect())
            };
            let name = split.to_string();
            ways.push(Way { name, devices, along: axis + 1, call: Box::new(call) });
        }
    }
    ways
}

/// Of dense attention.
pub fn dense<'a>(request: &Request, args: &Args, devices: &'a [Device]) -> Vec<Way<'a, 4>> {
    let problem = request.problem;
    let axis = problem.axes[MAX_RANK - 1];
    let alignment = match axis.origin {
        0 => CausalAlignment::Start,
        _ => CausalAlignment::End,
    };
    let options = AttentionOptions::new()
        .with_causal(axis.is_causal)
        .with_causal_alignment(alignment)
        .with_scale(problem.scale)
        .with_strategy(args.strategy);
    let one = options.clone();
    let mut ways = vec![one_device(devices, move |query, key, value| {
        Ok(try_attention(query, key, value, one.clone())?.out)
    })];
    let by_heads = problem.heads_kv.is_multiple_of(devices.len());
    for split in [DenseSplit::Gather, DenseSplit::Ring]
        .into_iter()
        .chain(by_heads.then_some(DenseSplit::Heads))
    {
        let options = options.clone();
        let call = move |[query, key, value]: Members<4>| {
            let members = try_attention_sharded(query, key, value, options.clone(), split)?;
            Ok(members.into_iter().map(|member| member.out).collect())
        };
        ways.push(Way { name: split.to_string(), devices, along: 1, call: Box::new(call) });
    }
    ways
}

/// What all is compared with: the first device has everything.
fn one_device<'a, const D: usize>(
    devices: &'a [Device],
    operator: impl Fn(Tensor<D>, Tensor<D>, Tensor<D>) -> Result<Tensor<D>, AttentionError> + 'a,
) -> Way<'a, D> {
    let call = move |[query, key, value]: Members<D>| {
        let tensors = query.into_iter().zip(key).zip(value);
        tensors.map(|((query, key), value)| operator(query, key, value)).collect()
    };
    let name = "one device".to_string();
    Way { name, devices: &devices[..1], along: 1, call: Box::new(call) }
}
