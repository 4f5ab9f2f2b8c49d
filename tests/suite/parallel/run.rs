//! Runs a problem of the oracle on shards of its tensors, through the public API.

use burn::tensor::{Device, Tensor};
use burn_natten::parallel::{
    DenseSplit, Split, try_attention_sharded, try_join_tokens, try_na1d_sharded, try_na2d_sharded,
    try_na3d_sharded, try_split_tokens_into,
};
use burn_natten::{AttentionError, AttentionOptions, NeighborhoodOptions, NeighborhoodOutput};
use rand::Rng;
use rand::rngs::StdRng;

use crate::support::check::close_to_unit;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Results, Setup, execute, options};

/// Who takes part.
#[derive(Clone, Debug)]
pub struct Team {
    pub devices: Vec<Device>,
    /// Tokens of each member; for dense attention, its queries.
    pub shards: Vec<usize>,
    /// Keys of each member in dense attention.
    pub key_shards: Vec<usize>,
}

impl Team {
    /// Members on one device, with shards of these lengths.
    pub fn on(device: &Device, shards: &[usize]) -> Self {
        let devices = vec![device.clone(); shards.len()];
        Self { devices, shards: shards.to_vec(), key_shards: shards.to_vec() }
    }

    fn split<const D: usize>(
        &self,
        tensor: Tensor<D>,
        axis: usize,
        shards: &[usize],
    ) -> Result<Vec<Tensor<D>>, AttentionError> {
        try_split_tokens_into(tensor, &self.devices, axis, shards)
    }

    fn join<const D: usize, const L: usize>(
        &self,
        members: Vec<(Tensor<D>, Tensor<L>)>,
        axis: usize,
    ) -> Result<(Tensor<D>, Tensor<L>), AttentionError> {
        let (outs, logsumexps) = members.into_iter().unzip();
        let device = &self.devices[0];
        Ok((try_join_tokens(outs, device, axis)?, try_join_tokens(logsumexps, device, axis)?))
    }
}

/// A problem over these axes, without a bias, whose heads can be shared out to members.
pub fn random_problem(rng: &mut StdRng, members: usize, axes: Vec<Axis>) -> Problem {
    let heads_kv = members * rng.random_range(1..=2);
    Problem {
        batch: rng.random_range(1..=2),
        heads: heads_kv * rng.random_range(1..=2),
        heads_kv,
        dim: 8,
        dim_v: [4, 8][rng.random_range(0..2)],
        additional: [None, Some(0), Some(3)][rng.random_range(0..3)],
        scale: None,
        bias: false,
        axes,
    }
}

/// Any lengths of some shards of an axis.
pub fn random_shards(rng: &mut StdRng, length: usize, members: usize) -> Vec<usize> {
    let mut shards = vec![1; members];
    for _ in members..length {
        shards[rng.random_range(0..members)] += 1;
    }
    shards
}

/// Runs windows that are split.
pub fn run(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    (team, split): (&Team, Split),
) -> Result<Results, AttentionError> {
    let space: Vec<usize> = problem.axes.iter().map(Axis::queries).collect();
    match space.len() {
        1 => execute::<2, 4, 3>(problem, inputs, setup, &space, &space, |q, k, v, a, b, bias| {
            let options = all::<1>(problem, setup, a, b).with_bias(bias);
            windows([q, k, v], options, (team, split), try_na1d_sharded)
        }),
        2 => execute::<3, 5, 4>(problem, inputs, setup, &space, &space, |q, k, v, a, b, bias| {
            let options = all::<2>(problem, setup, a, b).with_bias(bias);
            windows([q, k, v], options, (team, split), try_na2d_sharded)
        }),
        _ => execute::<4, 6, 5>(problem, inputs, setup, &space, &space, |q, k, v, a, b, bias| {
            let options = all::<3>(problem, setup, a, b).with_bias(bias);
            windows([q, k, v], options, (team, split), try_na3d_sharded)
        }),
    }
}

/// All options but the bias.
fn all<const N: usize>(
    problem: &Problem,
    setup: &Setup,
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
) -> NeighborhoodOptions<N> {
    options(problem).with_strategy(setup.strategy).with_additional_kv(keys, values)
}

type Operator<const N: usize, const D: usize, const L: usize> =
    fn(
        Vec<Tensor<D>>,
        Vec<Tensor<D>>,
        Vec<Tensor<D>>,
        NeighborhoodOptions<N>,
        Split,
    ) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError>;

fn windows<const N: usize, const D: usize, const L: usize>(
    [query, key, value]: [Tensor<D>; 3],
    options: NeighborhoodOptions<N>,
    (team, split): (&Team, Split),
    operator: Operator<N, D, L>,
) -> Result<(Tensor<D>, Tensor<L>), AttentionError> {
    let axis = split.axis();
    let shards = |tensor| team.split(tensor, axis, &team.shards);
    let members = operator(shards(query)?, shards(key)?, shards(value)?, options, split)?;
    team.join(members.into_iter().map(|member| (member.out, member.logsumexp)).collect(), axis)
}

/// Runs dense attention that is split.
pub fn run_dense(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    options: &AttentionOptions,
    (team, split): (&Team, DenseSplit),
) -> Result<Results, AttentionError> {
    let (queries, keys) = ([problem.queries()], [problem.keys()]);
    execute::<2, 4, 3>(problem, inputs, setup, &queries, &keys, |q, k, v, a, b, _| {
        let options = options.clone().with_scale(problem.scale).with_strategy(setup.strategy);
        let members = try_attention_sharded(
            team.split(q, 0, &team.shards)?,
            team.split(k, 0, &team.key_shards)?,
            team.split(v, 0, &team.key_shards)?,
            options.with_additional_kv(a, b),
            split,
        )?;
        team.join(members.into_iter().map(|member| (member.out, member.logsumexp)).collect(), 0)
    })
}

/// Within a tolerance of what is expected, in units of at least 1: gradients of normal numbers may vanish.
pub fn agree(what: &str, got: &Results, want: &Results, tolerance: f64) {
    close_to_unit(&format!("{what} out"), &got.out, &want.out, tolerance, 1.0);
    close_to_unit(&format!("{what} lse"), &got.lse, &want.lse, tolerance, 1.0);
    let gradients = |results: &Results| results.gradients.clone().expect("both have them");
    let (got, want) = (gradients(got), gradients(want));
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
    }
}

/// What is right.
pub fn expected(problem: &Problem, inputs: &Inputs) -> Results {
    let (out, lse) = problem.forward(inputs);
    let gradients = Some(problem.backward(inputs, &out));
    Results { out, lse, gradients }
}
