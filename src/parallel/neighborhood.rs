use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

use super::exchange::{Links, cat, narrow};
use super::members::{Members, lengths};
use super::options::{Heads, Shared};
use super::plan::{HaloPlan, MemberPlan};
use super::shards::{even_shards, ranges};
use super::split::Split;
use super::tokens::tensor_axis;
use crate::functional::inputs::Inputs;
use crate::functional::neighborhood;
use crate::problem::{self, SPACE, Shapes, same};
use crate::{AttentionError, Context, NeighborhoodOptions, NeighborhoodOutput};

/// Defines the operator of a rank and its twin.
macro_rules! neighborhood_sharded {
    ($name:ident, $try_name:ident, $uniform:ident, rank $rank:literal, $d:literal, $l:literal, space $space:literal,
     example $dims:literal $kernel:literal) => {
        #[doc = concat!("[`", stringify!($uniform), "`](crate::", stringify!($uniform), ") of tokens that lie in shards, on a device each.")]
        ///
        /// Member `i` has a part of the tokens along an axis, in order, and gets the output of its own queries. Members may be of different
        /// lengths, and on devices that are named twice. Additional tokens and a position bias are those of all members, on any device:
        /// they are sent to the others, and their gradients are summed. All else is as for one device, gradients included.
        /// [`split_tokens`](crate::parallel::split_tokens) makes shards, [`Split`] says what members send each other.
        ///
        /// # Shapes
        ///
        #[doc = concat!("- query, of each member: `[batch, ", $space, ", heads, head_dim]`, shorter along the axis of the split")]
        #[doc = concat!("- key, of each member: `[batch, ", $space, ", heads_kv, head_dim]`, the tokens of its query")]
        #[doc = concat!("- value, of each member: `[batch, ", $space, ", heads_kv, head_dim_v]`, the tokens of its query")]
        #[doc = concat!("- returns, for each member: `[batch, ", $space, ", heads, head_dim_v]`")]
        ///
        /// # Panics
        ///
        #[doc = concat!("With the text of the [`AttentionError`] that [`", stringify!($try_name), "`] returns; if a device fails.")]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::parallel::{Split, join_tokens, ", stringify!($name), ", split_tokens};")]
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($uniform), "};")]
        ///
        /// // Two members on one device; on GPUs, `Device::cuda(0)` and `Device::cuda(1)`.
        /// let devices = [Device::flex(), Device::flex()];
        #[doc = concat!("let x = Tensor::<", $d, ">::random(", $dims, ", Distribution::Default, &devices[0]);")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        /// let shards = split_tokens(x.clone(), &devices, 0);
        #[doc = concat!("let out = ", stringify!($name), "(shards.clone(), shards.clone(), shards, options.clone(), Split::Halo { axis: 0 });")]
        ///
        #[doc = concat!("let alone = ", stringify!($uniform), "(x.clone(), x.clone(), x, options);")]
        /// assert!(join_tokens(out, &devices[0], 0).all_close(alone, None, Some(1e-6)));
        /// ```
        ///
        /// Reference: [DeepSpeed Ulysses](https://arxiv.org/abs/2309.14509), which splits heads.
        #[track_caller]
        pub fn $name(
            query: Vec<Tensor<$d>>,
            key: Vec<Tensor<$d>>,
            value: Vec<Tensor<$d>>,
            options: NeighborhoodOptions<$rank>,
            split: Split,
        ) -> Vec<Tensor<$d>> {
            match $try_name(query, key, value, options, split) {
                Ok(members) => members.into_iter().map(|member| member.out).collect(),
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($name), "`], with the logsumexps beside the outputs.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the member, the argument and the axis that does not fit, the value it got and the bound:
        /// if numbers of tensors, types, shapes or devices of members do not fit together, a member has no token, heads cannot be shared
        /// out, or devices have no way to exchange tensors.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Tensor};
        #[doc = concat!("use burn_natten::parallel::{Split, ", stringify!($try_name), "};")]
        /// use burn_natten::NeighborhoodOptions;
        ///
        #[doc = concat!("let x = Tensor::<", $d, ">::zeros(", $dims, ", &Device::flex());")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        /// let (query, one) = (vec![x.clone(); 2], vec![x]);
        #[doc = concat!("let error = ", stringify!($try_name), "(query.clone(), one, query, options, Split::Heads { axis: 0 })")]
        ///     .expect_err("a key is missing");
        /// assert_eq!(error.to_string(), "members of key: is 1, must be 2 (members of query)");
        /// ```
        pub fn $try_name(
            query: Vec<Tensor<$d>>,
            key: Vec<Tensor<$d>>,
            value: Vec<Tensor<$d>>,
            options: NeighborhoodOptions<$rank>,
            split: Split,
        ) -> Result<Vec<NeighborhoodOutput<$d, $l>>, AttentionError> {
            sharded([query, key, value], options, split)
        }
    };
}

neighborhood_sharded!(na1d_sharded, try_na1d_sharded, na1d, rank 1, 4, 3, space "length",
    example "[1, 20, 2, 8]" "5");
neighborhood_sharded!(na2d_sharded, try_na2d_sharded, na2d, rank 2, 5, 4, space "height, width",
    example "[1, 8, 9, 2, 8]" "[3, 5]");
neighborhood_sharded!(na3d_sharded, try_na3d_sharded, na3d, rank 3, 6, 5, space "depth, height, width",
    example "[1, 4, 5, 6, 2, 8]" "[2, 3, 5]");

fn sharded<const N: usize, const D: usize, const L: usize>(
    tensors: [Vec<Tensor<D>>; 3],
    mut options: NeighborhoodOptions<N>,
    split: Split,
) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError> {
    let along = tensor_axis(split.axis(), N, "spatial axes")?;
    let members = Members::try_new(tensors, (along, SPACE))?;
    for (number, (key, query)) in members.key.iter().zip(&members.query).enumerate() {
        same(&key.dims(), "key", &query.dims(), "query", along, SPACE)
            .map_err(|error| error.of_member(number))?;
    }
    let shared = Shared::of_windows(&mut options)?;
    let whole = Whole::new(&members, &shared, &options, along)?;
    let context = options.common.context.unwrap_or_else(Context::current);
    let links = Links::new(members.devices(), &shared.devices(), context)?;
    let outputs = match split {
        _ if links.len() == 1 => alone(members, &shared, &options, &links),
        Split::Heads { .. } => by_heads(&members, &whole, &shared, &options, &links),
        Split::Halo { axis } => by_halo(&members, &whole, &shared, &options, (axis, &links)),
    }?;
    links.begin();
    Ok(outputs)
}

/// The tensors as they would be on one device.
struct Whole<const N: usize> {
    /// The axis of the tensors that is split.
    along: usize,
    /// The lengths of all axes.
    space: [usize; N],
    /// Tokens of each member along the one that is split.
    shards: Vec<usize>,
    heads: usize,
    heads_kv: usize,
}

impl<const N: usize> Whole<N> {
    /// Fails if one device would refuse the whole.
    fn new<const D: usize>(
        members: &Members<D>,
        shared: &Shared,
        options: &NeighborhoodOptions<N>,
        along: usize,
    ) -> Result<Self, AttentionError> {
        let shards = lengths(&members.query, along);
        let whole = |tensors: &[Tensor<D>]| {
            let mut dims = tensors[0].dims();
            dims[along] = shards.iter().sum();
            dims
        };
        let (query, key) = (whole(&members.query), whole(&members.key));
        let bias = shared.bias().map(TensorMetadata::shape);
        let shapes = Shapes {
            query: &query,
            key: &key,
            value: &whole(&members.value),
            additional: shared.additional_shapes(),
            bias: bias.as_ref().map(|shape| shape.as_slice()),
        };
        problem::neighborhood(shapes, options.windows(), options.common.scale)?;
        let mut space = [0; N];
        space.copy_from_slice(&query[1..=N]);
        Ok(Self { along, space, shards, heads: query[N + 1], heads_kv: key[N + 1] })
    }
}

/// One member has everything.
fn alone<const N: usize, const D: usize, const L: usize>(
    members: Members<D>,
    shared: &Shared,
    options: &NeighborhoodOptions<N>,
    links: &Links,
) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError> {
    let options = shared.windows(options, links, 0, None);
    let tensors = members.query.into_iter().zip(members.key).zip(members.value);
    tensors.map(|((query, key), value)| neighborhood(query, key, value, options.clone())).collect()
}

/// Members exchange tokens for heads, attend to all tokens with some heads each, and exchange back.
fn by_heads<const N: usize, const D: usize, const L: usize>(
    members: &Members<D>,
    whole: &Whole<N>,
    shared: &Shared,
    options: &NeighborhoodOptions<N>,
    links: &Links,
) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError> {
    let heads = share_out(whole.heads, whole.heads_kv, links.len())?;
    let of_query: Vec<_> = heads.iter().map(|heads| heads.query.clone()).collect();
    let of_key: Vec<_> = heads.iter().map(|heads| heads.key.clone()).collect();
    let (along, axis) = (whole.along, N + 1);
    let query = links.regroup(&members.query, (axis, &of_query), along);
    let key = links.regroup(&members.key, (axis, &of_key), along);
    let value = links.regroup(&members.value, (axis, &of_key), along);
    let (mut outs, mut logsumexps) = (vec![], vec![]);
    for (number, ((query, key), value)) in query.into_iter().zip(key).zip(value).enumerate() {
        let options = shared.windows(options, links, number, Some(&heads[number]));
        let output = neighborhood::<N, D, L>(query, key, value, options);
        let output = output.map_err(|error| error.of_member(number))?;
        outs.push(output.out);
        logsumexps.push(output.logsumexp);
    }
    let tokens: Vec<_> = ranges(&whole.shards).collect();
    let outs = links.regroup(&outs, (along, &tokens), axis);
    let logsumexps = links.regroup(&logsumexps, (along, &tokens), axis);
    let outputs = outs.into_iter().zip(logsumexps);
    Ok(outputs.map(|(out, logsumexp)| NeighborhoodOutput { out, logsumexp }).collect())
}

/// The heads of each of some members.
pub(super) fn share_out(
    heads: usize,
    heads_kv: usize,
    members: usize,
) -> Result<Vec<Heads>, AttentionError> {
    if !heads_kv.is_multiple_of(members) {
        let (parameter, bound) = ("heads of key", format!("a multiple of {members} (members)"));
        return Err(AttentionError::Parameter { parameter, got: heads_kv, bound });
    }
    let [query, key] = [heads, heads_kv].map(|heads| even_shards(heads, members));
    let heads = ranges(&query).zip(ranges(&key));
    Ok(heads.map(|(query, key)| Heads { query, key }).collect())
}

/// Members send each other the keys and values that the windows at their ends reach.
fn by_halo<const N: usize, const D: usize, const L: usize>(
    members: &Members<D>,
    whole: &Whole<N>,
    shared: &Shared,
    options: &NeighborhoodOptions<N>,
    (axis, links): (usize, &Links),
) -> Result<Vec<NeighborhoodOutput<D, L>>, AttentionError> {
    let along = whole.along;
    let plan = HaloPlan::new(&options.axes(whole.space)?[axis], &whole.shards)?;
    // All that travels is on its way before anybody computes.
    let gathered: Vec<_> = (0..links.len())
        .map(|member| {
            let gather = |tensors| gather(tensors, &plan, along, (member, links));
            (gather(&members.key), gather(&members.value))
        })
        .collect();
    let mut outputs = vec![];
    for (number, (key, value)) in gathered.into_iter().enumerate() {
        let query = members.query[number].clone();
        let options = shared.windows(options, links, number, None);
        let part = (axis, &plan.members[number]);
        let output = part_of(whole, [query, key, value], options, part);
        outputs.push(output.map_err(|error| error.of_member(number))?);
    }
    Ok(outputs)
}

/// What a member needs of a tensor: its own shard, and what others send.
fn gather<const D: usize>(
    shards: &[Tensor<D>],
    plan: &HaloPlan,
    along: usize,
    (member, links): (usize, &Links),
) -> Tensor<D> {
    let own = (member, plan.members[member].queries.clone());
    let sent = plan.sends.iter().filter(|send| send.to == member);
    let mut parts: Vec<_> = sent.map(|send| (send.from, send.tokens.clone())).collect();
    parts.push(own);
    parts.sort_by_key(|(_, tokens)| tokens.start);
    let part = |(from, tokens): (usize, Range<usize>)| {
        let start = plan.members[from].queries.start;
        let tokens = tokens.start - start..tokens.end - start;
        links.to(member, narrow(shards[from].clone(), along, tokens))
    };
    cat(parts.into_iter().map(part).collect(), along)
}

/// Attention of a member's queries to the keys that it has gathered.
fn part_of<const N: usize, const D: usize, const L: usize>(
    whole: &Whole<N>,
    [query, key, value]: [Tensor<D>; 3],
    mut options: NeighborhoodOptions<N>,
    (axis, plan): (usize, &MemberPlan),
) -> Result<NeighborhoodOutput<D, L>, AttentionError> {
    let along = whole.along;
    let additional = std::mem::take(&mut options.common.additional);
    let query = padded(query, along, plan.padding);
    let inputs = Inputs::try_new(query, key, value, additional)?.with_bias(options.bias.take())?;
    let bias = inputs.bias.as_ref().map(TensorMetadata::shape);
    let shapes = Shapes {
        query: &inputs.query.dims(),
        key: &inputs.key.dims(),
        value: &inputs.value.dims(),
        additional: inputs.additional.as_ref().map(|(key, value)| (key.dims(), value.dims())),
        bias: bias.as_ref().map(|shape| shape.as_slice()),
    };
    let (windows, scale) = (options.windows(), options.common.scale);
    let problem = problem::part_of_space(shapes, windows, &whole.space, (axis, plan.axis), scale)?;
    let (out, logsumexp) = inputs.run::<L>(problem, &options.common)?;
    let own = plan.padding..plan.padding + plan.queries.len();
    let (out, logsumexp) = (narrow(out, along, own.clone()), narrow(logsumexp, along, own));
    Ok(NeighborhoodOutput { out, logsumexp })
}

/// With zeros in front along an axis.
fn padded<const D: usize>(tensor: Tensor<D>, axis: usize, count: usize) -> Tensor<D> {
    if count == 0 {
        return tensor;
    }
    let mut shape = tensor.dims();
    shape[axis] = count;
    let zeros = Tensor::zeros(shape, (&tensor.device(), tensor.dtype()));
    Tensor::cat(vec![zeros, tensor], axis)
}
