use std::fmt;
use std::ops::Range;

use burn::tensor::Tensor;
use burn_natten_kernels::Axis;

use super::exchange::{Links, cat, narrow};
use super::members::{Members, lengths};
use super::neighborhood::share_out;
use super::options::Shared;
use super::plan::overlap;
use super::shards::ranges;
use crate::functional::inputs::Inputs;
use crate::functional::{try_attention, try_merge_attentions};
use crate::problem::{self, Shapes, TOKENS};
use crate::{AttentionError, AttentionOptions, AttentionOutput, CausalAlignment, Context};

/// The axis of tokens, and that of heads.
const ALONG: usize = 1;
const HEADS: usize = 2;

/// What members send each other in [`attention_sharded`], where every query may see every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DenseSplit {
    /// Members exchange tokens for heads, compute all tokens of some heads, and exchange back. Heads of keys have to be a multiple of the
    /// members. Balanced, causal or not.
    Heads,
    /// Members get the keys and values of all others, and compute their own queries: one attention each, and memory for all keys.
    Gather,
    /// Keys and values go round from member to member, and each merges what its queries see of them
    /// ([`merge_attentions`](crate::merge_attentions)): memory for two shards of keys, but that gradients need them all. Causal members skip
    /// shards that are wholly ahead of them, and nothing is sent further than it is needed.
    Ring,
}

impl fmt::Display for DenseSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Heads => "heads",
            Self::Gather => "gather",
            Self::Ring => "ring",
        })
    }
}

/// Dense [`attention`](crate::attention) of tokens that lie in shards, on a device each.
///
/// Member `i` has a part of the queries and a part of the keys, in order, and gets the output of its queries. Members may be of different
/// lengths, other for queries than for keys, and on devices that are named twice. Causality is that of all tokens. Additional tokens are
/// those of all members, on any device: they are sent to the others, and their gradients are summed.
///
/// # Shapes
///
/// - query, of each member: `[batch, queries, heads, head_dim]`
/// - key, of each member: `[batch, keys, heads_kv, head_dim]`, where `heads` is a multiple of `heads_kv`
/// - value, of each member: `[batch, keys, heads_kv, head_dim_v]`
/// - returns, for each member: `[batch, queries, heads, head_dim_v]`
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_attention_sharded`] returns; if a device fails.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::parallel::{DenseSplit, attention_sharded, join_tokens, split_tokens};
/// use burn_natten::{AttentionOptions, attention};
///
/// // Two members on one device; on GPUs, `Device::cuda(0)` and `Device::cuda(1)`.
/// let devices = [Device::flex(), Device::flex()];
/// let x = Tensor::<4>::random([1, 21, 4, 16], Distribution::Default, &devices[0]);
/// let options = AttentionOptions::new().with_causal(true);
/// let shards = split_tokens(x.clone(), &devices, 0);
/// let out = attention_sharded(shards.clone(), shards.clone(), shards, options.clone(), DenseSplit::Ring);
///
/// let alone = attention(x.clone(), x.clone(), x, options);
/// assert!(join_tokens(out, &devices[0], 0).all_close(alone, None, Some(1e-6)));
/// ```
///
/// Reference: [Ring Attention](https://arxiv.org/abs/2310.01889), [DeepSpeed Ulysses](https://arxiv.org/abs/2309.14509).
#[track_caller]
pub fn attention_sharded(
    query: Vec<Tensor<4>>,
    key: Vec<Tensor<4>>,
    value: Vec<Tensor<4>>,
    options: AttentionOptions,
    split: DenseSplit,
) -> Vec<Tensor<4>> {
    match try_attention_sharded(query, key, value, options, split) {
        Ok(members) => members.into_iter().map(|member| member.out).collect(),
        Err(error) => panic!("{error}"),
    }
}

/// [`attention_sharded`], with the logsumexps beside the outputs.
///
/// # Errors
///
/// As [`try_na1d_sharded`](super::try_na1d_sharded).
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::AttentionOptions;
/// use burn_natten::parallel::{DenseSplit, try_attention_sharded};
///
/// let x = vec![Tensor::<4>::zeros([1, 5, 3, 8], &Device::flex()); 2];
/// let error = try_attention_sharded(x.clone(), x.clone(), x, AttentionOptions::new(), DenseSplit::Heads)
///     .expect_err("three heads for two members");
/// assert_eq!(error.to_string(), "heads of key: is 3, must be a multiple of 2 (members)");
/// ```
pub fn try_attention_sharded(
    query: Vec<Tensor<4>>,
    key: Vec<Tensor<4>>,
    value: Vec<Tensor<4>>,
    mut options: AttentionOptions,
    split: DenseSplit,
) -> Result<Vec<AttentionOutput>, AttentionError> {
    let members = Members::try_new([query, key, value], (ALONG, TOKENS))?;
    let shared = Shared::of_dense(&mut options)?;
    let whole = Whole::new(&members, &shared, &options)?;
    let context = options.context.unwrap_or_else(Context::current);
    let links = Links::new(members.devices(), &shared.devices(), context)?;
    let team = Team { members, shared, options, links, whole };
    match split {
        _ if team.links.len() == 1 => team.alone(),
        DenseSplit::Heads => team.by_heads(),
        DenseSplit::Gather => team.by_gather(),
        DenseSplit::Ring => team.by_ring(),
    }
}

/// The tensors as they would be on one device.
struct Whole {
    /// The queries of each member.
    queries: Vec<Range<usize>>,
    /// The keys of each member.
    keys: Vec<Range<usize>>,
    heads: usize,
    heads_kv: usize,
    /// Where the first query stands among the keys, if queries see none behind them.
    causal: Option<isize>,
}

impl Whole {
    /// Fails if one device would refuse the whole.
    fn new(
        members: &Members<4>,
        shared: &Shared,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        let whole = |tensors: &[Tensor<4>]| {
            let mut dims = tensors[0].dims();
            dims[ALONG] = lengths(tensors, ALONG).iter().sum();
            dims
        };
        let (query, key) = (whole(&members.query), whole(&members.key));
        let shapes = Shapes {
            query: &query,
            key: &key,
            value: &whole(&members.value),
            additional: shared.additional_shapes(),
            bias: None,
        };
        let causal = options.is_causal.then_some(options.alignment);
        problem::dense(shapes, causal, options.scale)?;
        let shards = |tensors: &[Tensor<4>]| ranges(&lengths(tensors, ALONG)).collect();
        Ok(Self {
            queries: shards(&members.query),
            keys: shards(&members.key),
            heads: query[HEADS],
            heads_kv: key[HEADS],
            causal: causal.map(|alignment| match alignment {
                CausalAlignment::Start => 0,
                _ => key[ALONG] as isize - query[ALONG] as isize,
            }),
        })
    }

    /// The keys that queries of a member see, from the first on.
    fn seen(&self, member: usize) -> Range<usize> {
        let all = self.keys.last().map_or(0, |keys| keys.end);
        let seen = match self.causal {
            Some(origin) => {
                let end = self.queries[member].end as isize + origin;
                usize::try_from(end).unwrap_or(0).min(all)
            }
            None => all,
        };
        0..seen
    }

    /// How the queries of a member stand to some of the keys.
    fn axis(&self, member: usize, keys: &Range<usize>) -> Axis {
        let queries = &self.queries[member];
        match self.causal {
            // Where the first one sees all, nothing is hidden.
            Some(origin) if queries.start as isize + origin + 1 < keys.end as isize => {
                let origin = queries.start as isize + origin - keys.start as isize;
                Axis::dense(queries.len(), keys.len(), true).with_origin(origin)
            }
            _ => Axis::dense(queries.len(), keys.len(), false),
        }
    }

    /// Whether a member has to attend to the keys of another one, or, where it sees none at all, to its own.
    fn needs(&self, member: usize, block: usize) -> bool {
        let seen = self.seen(member);
        let sees_block = !overlap(&self.keys[block], &seen).is_empty();
        sees_block || seen.is_empty() && member == block
    }
}

/// All that takes part.
struct Team {
    members: Members<4>,
    shared: Shared,
    options: AttentionOptions,
    links: Links,
    whole: Whole,
}

impl Team {
    /// One member has everything.
    fn alone(self) -> Result<Vec<AttentionOutput>, AttentionError> {
        let (keys, values) = self.shared.additional(&self.links, 0, None).unzip();
        let options = self.options.with_additional_kv(keys, values);
        let Members { query, key, value } = self.members;
        let tensors = query.into_iter().zip(key).zip(value);
        tensors.map(|((q, k), v)| try_attention(q, k, v, options.clone())).collect()
    }

    fn by_heads(self) -> Result<Vec<AttentionOutput>, AttentionError> {
        let Self { members, links, whole, .. } = &self;
        let heads = share_out(whole.heads, whole.heads_kv, links.len())?;
        let of_query: Vec<_> = heads.iter().map(|heads| heads.query.clone()).collect();
        let of_key: Vec<_> = heads.iter().map(|heads| heads.key.clone()).collect();
        let query = links.regroup(&members.query, (HEADS, &of_query), ALONG);
        let key = links.regroup(&members.key, (HEADS, &of_key), ALONG);
        let value = links.regroup(&members.value, (HEADS, &of_key), ALONG);
        let (mut outs, mut logsumexps) = (vec![], vec![]);
        for (number, ((query, key), value)) in query.into_iter().zip(key).zip(value).enumerate() {
            let more = self.shared.additional(links, number, Some(&heads[number]));
            let (keys, values) = more.unzip();
            let options = self.options.clone().with_additional_kv(keys, values);
            let output = try_attention(query, key, value, options);
            let output = output.map_err(|error| error.of_member(number))?;
            outs.push(output.out);
            logsumexps.push(output.logsumexp);
        }
        let outs = links.regroup(&outs, (ALONG, &whole.queries), HEADS);
        let logsumexps = links.regroup(&logsumexps, (ALONG, &whole.queries), HEADS);
        links.begin();
        let outputs = outs.into_iter().zip(logsumexps);
        Ok(outputs.map(|(out, logsumexp)| AttentionOutput { out, logsumexp }).collect())
    }

    fn by_gather(self) -> Result<Vec<AttentionOutput>, AttentionError> {
        let gather = |shards: &[Tensor<4>], member: usize, seen: &Range<usize>| {
            let part = |(shard, keys): (&Tensor<4>, &Range<usize>)| {
                let seen = overlap(keys, seen);
                let seen = seen.start - keys.start..seen.end - keys.start;
                let part = || narrow(shard.clone(), ALONG, seen.clone());
                (!seen.is_empty()).then(|| self.links.to(member, part()))
            };
            cat(shards.iter().zip(&self.whole.keys).filter_map(part).collect(), ALONG)
        };
        // Who sees no key is computed with one that it does not see.
        let seen = |member| 0..self.whole.seen(member).end.max(1);
        // All that travels is on its way before anybody computes.
        let gathered: Vec<_> = (0..self.links.len())
            .map(|member| {
                let seen = seen(member);
                let key = gather(&self.members.key, member, &seen);
                (key, gather(&self.members.value, member, &seen), seen)
            })
            .collect();
        let of = |(member, (key, value, seen))| self.part(member, (key, value), &seen, true);
        let outputs = gathered.into_iter().enumerate().map(of).collect();
        self.links.begin();
        outputs
    }

    fn by_ring(self) -> Result<Vec<AttentionOutput>, AttentionError> {
        let Self { members, links, whole, .. } = &self;
        let size = links.len();
        let mut held: Vec<_> =
            members.key.iter().cloned().zip(members.value.iter().cloned()).map(Some).collect();
        let mut parts: Vec<Vec<AttentionOutput>> = vec![vec![]; size];
        for step in 0..size {
            let block = |member: usize| (member + size - step) % size;
            let mut next: Vec<Option<(Tensor<4>, Tensor<4>)>> = vec![None; size];
            // What others need goes on before anybody computes.
            for (member, held) in held.iter().enumerate() {
                let block = block(member);
                let is_needed = |step| whole.needs((block + step) % size, block);
                if let Some((key, value)) = held.clone()
                    && (step + 1..size).any(is_needed)
                {
                    let to = (member + 1) % size;
                    // Exchanges are at even distances from the leaves, and attention at odd ones.
                    let send = |tensor| links.behind(links.to(to, tensor));
                    next[to] = Some((send(key), send(value)));
                }
            }
            for (member, held) in held.into_iter().enumerate() {
                let block = block(member);
                if let Some(held) = held
                    && whole.needs(member, block)
                {
                    let is_first = parts[member].is_empty();
                    let (key, value) = held;
                    let held = (links.behind(key), links.behind(value));
                    parts[member].push(self.part(member, held, &whole.keys[block], is_first)?);
                }
            }
            held = next;
        }
        let merge = |(number, parts): (usize, Vec<AttentionOutput>)| {
            let parts = parts.into_iter().map(|part| (part.out, part.logsumexp));
            let (outs, logsumexps): (Vec<_>, Vec<_>) = parts.unzip();
            let merged = try_merge_attentions(outs, logsumexps);
            let (out, logsumexp) = merged.map_err(|error| error.of_member(number))?;
            Ok(AttentionOutput { out, logsumexp })
        };
        let outputs = parts.into_iter().enumerate().map(merge).collect();
        links.begin();
        outputs
    }

    /// Attention of a member's queries to some of the keys, and to the additional tokens as well or not.
    fn part(
        &self,
        member: usize,
        (key, value): (Tensor<4>, Tensor<4>),
        keys: &Range<usize>,
        has_additional: bool,
    ) -> Result<AttentionOutput, AttentionError> {
        let additional = match has_additional {
            true => self.shared.additional(&self.links, member, None).unzip(),
            false => (None, None),
        };
        let part = || {
            let query = self.members.query[member].clone();
            let inputs = Inputs::try_new(query, key, value, additional)?;
            let shapes = Shapes {
                query: &inputs.query.dims(),
                key: &inputs.key.dims(),
                value: &inputs.value.dims(),
                additional: inputs.additional.as_ref().map(|(k, v)| (k.dims(), v.dims())),
                bias: None,
            };
            let axis = self.whole.axis(member, keys);
            let problem = problem::dense_part(shapes, axis, self.options.scale)?;
            let (out, logsumexp) = inputs.run(problem, &self.options)?;
            Ok(AttentionOutput { out, logsumexp })
        };
        part().map_err(|error: AttentionError| error.of_member(member))
    }
}
