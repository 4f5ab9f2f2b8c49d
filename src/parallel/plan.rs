use std::fmt;
use std::ops::Range;

use burn_natten_kernels::Axis;

use super::shards::{ranges, validate};
use crate::AttentionError;

/// Which keys each member needs of which others, where the queries of windows are split along an axis.
///
/// A member computes its own queries. It needs the keys of their windows, which begin in other members' shards or end there: the halo.
/// The keys that it holds then begin at a multiple of `dilation * stride`, and end there or with the axis, so that its windows are those of
/// the whole axis. Nothing is computed twice.
///
/// The plan holds no tensor and is printable:
///
/// ```rust
/// use burn_natten::NeighborhoodOptions;
/// use burn_natten::parallel::HaloPlan;
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let [time] = NeighborhoodOptions::<1>::new(5).axes([30])?;
/// let plan = HaloPlan::new(&time, &[10, 12, 8])?;
/// assert_eq!((plan.members[1].queries.clone(), plan.members[1].keys.clone()), (10..22, 8..24));
/// assert_eq!(
///     plan.to_string(),
///     "axis of 30 tokens, 3 members\n\
///      member 0: queries 0..10, keys 0..12, 2 of others\n\
///      member 1: queries 10..22, keys 8..24, 4 of others\n\
///      member 2: queries 22..30, keys 20..30, 2 of others\n\
///      1 sends 10..12 to 0\n\
///      0 sends 8..10 to 1\n\
///      2 sends 22..24 to 1\n\
///      1 sends 20..22 to 2\n"
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HaloPlan {
    /// What each member computes.
    pub members: Vec<MemberPlan>,
    /// What members send each other, in the order of the receivers, and of tokens for each of them.
    pub sends: Vec<HaloSend>,
}

/// What a member computes, in a [`HaloPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MemberPlan {
    /// Its own tokens, which are its queries.
    pub queries: Range<usize>,
    /// Queries without a meaning in front of its own: with a dilation, kernels take queries from a multiple of it on.
    pub padding: usize,
    /// The tokens whose keys and values it needs; its own are among them.
    pub keys: Range<usize>,
    /// The axis of its problem: `padding` and its queries, at their place among these keys.
    pub axis: Axis,
}

/// Keys and values that one member sends another, in a [`HaloPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HaloSend {
    /// The member whose tokens they are.
    pub from: usize,
    /// The member that needs them.
    pub to: usize,
    /// The tokens, numbered along the whole axis.
    pub tokens: Range<usize>,
}

impl HaloPlan {
    /// The plan for an axis of windows, as [`axes`](crate::NeighborhoodOptions::axes) gives it, whose tokens lie in shards of these lengths.
    ///
    /// # Errors
    ///
    /// [`AttentionError`] if there is no shard, one of them is empty, or they are not all tokens of the axis.
    pub fn new(axis: &Axis, shards: &[usize]) -> Result<Self, AttentionError> {
        validate(shards, axis.keys)?;
        let shards: Vec<_> = ranges(shards).collect();
        let members: Vec<_> = shards.iter().map(|shard| member(axis, shard.clone())).collect();
        let mut sends = vec![];
        for (to, member) in members.iter().enumerate() {
            for (from, shard) in shards.iter().enumerate() {
                let tokens = overlap(shard, &member.keys);
                if from != to && !tokens.is_empty() {
                    sends.push(HaloSend { from, to, tokens });
                }
            }
        }
        Ok(Self { members, sends })
    }

    /// Tokens that travel, those that go to several members counted for each.
    pub fn tokens_sent(&self) -> usize {
        self.sends.iter().map(|send| send.tokens.len()).sum()
    }
}

/// The tokens that are in both.
pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

fn member(axis: &Axis, queries: Range<usize>) -> MemberPlan {
    let Axis { dilation, stride, kernel_size, keys: length, .. } = *axis;
    // Windows never turn back, so that those of the first and of the last query of each dilation group are the ends.
    let last = queries.end.saturating_sub(dilation).max(queries.start);
    let first = queries.start..(queries.start + dilation).min(queries.end);
    let (mut start, mut end) = (queries.start, queries.end);
    for query in first.chain(last..queries.end) {
        let (key, count) = axis.window(query);
        start = start.min(key);
        end = end.max(key + count.saturating_sub(1) * dilation + 1);
    }
    // A key of each dilation group for each place in a group of queries that share a window.
    let step = dilation * stride;
    start = start / step * step;
    end = end.next_multiple_of(step).min(length);
    // As few keys as a window are an axis of their own.
    end = end.max((start + kernel_size * dilation).next_multiple_of(step).min(length));
    while end - start < kernel_size * dilation {
        start = start.saturating_sub(step);
    }
    let padding = queries.start % dilation;
    let first = queries.start - padding;
    let mut part = axis.with_origin((first - start) as isize);
    (part.queries, part.keys) = (queries.end - first, end - start);
    MemberPlan { padding, keys: start..end, axis: part, queries }
}

impl fmt::Display for HaloPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.members.last().map_or(0, |member| member.queries.end);
        writeln!(f, "axis of {tokens} tokens, {} members", self.members.len())?;
        for (number, MemberPlan { queries, keys, .. }) in self.members.iter().enumerate() {
            let others = keys.len() - queries.len();
            writeln!(f, "member {number}: queries {queries:?}, keys {keys:?}, {others} of others")?;
        }
        for HaloSend { from, to, tokens } in &self.sends {
            writeln!(f, "{from} sends {tokens:?} to {to}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// The keys that a query sees, in an axis that begins at `start`.
    fn seen(axis: &Axis, query: usize, start: usize) -> Vec<usize> {
        let (first, count) = axis.window(query);
        (0..count).map(|key| start + first + key * axis.dilation).collect()
    }

    fn check(axis: &Axis, shards: &[usize]) {
        let plan = HaloPlan::new(axis, shards).expect("fits");
        let what = || format!("{axis:?} in {shards:?}:\n{plan}");
        let mut held: Vec<BTreeSet<usize>> = ranges(shards).map(|shard| shard.collect()).collect();
        for HaloSend { from, to, tokens } in &plan.sends {
            let owner = &plan.members[*from].queries;
            assert!(owner.start <= tokens.start && tokens.end <= owner.end, "{}", what());
            assert!(tokens.clone().all(|token| held[*to].insert(token)), "{}", what());
        }
        for (member, held) in plan.members.iter().zip(&held) {
            let MemberPlan { queries, padding, keys, axis: part } = member;
            assert!(keys.clone().all(|key| held.contains(&key)), "{}", what());
            assert_eq!(held.len(), keys.len(), "sent in vain: {}", what());
            assert!(part.is_among_keys() && part.origin % part.dilation as isize == 0);
            assert!(part.kernel_size * part.dilation <= part.keys, "{}", what());
            assert_eq!((part.queries, part.keys), (padding + queries.len(), keys.len()));
            for (number, query) in queries.clone().enumerate() {
                let got = seen(part, padding + number, keys.start);
                assert_eq!(got, seen(axis, query, 0), "query {query}: {}", what());
            }
            // And the inverse, which backward passes go by.
            for key in 0..part.keys {
                let (first, count) = part.visitors(key);
                let got: BTreeSet<_> = (0..count).map(|i| first + i * part.dilation).collect();
                let sees =
                    |query: &usize| seen(part, *query, keys.start).contains(&(keys.start + key));
                let want: BTreeSet<_> = (0..part.queries).filter(sees).collect();
                assert_eq!(got, want, "key {key}: {}", what());
            }
        }
    }

    fn random_axis(rng: &mut StdRng) -> Axis {
        let length = rng.random_range(2..40);
        let kernel_size = rng.random_range(2..=length);
        Axis::neighborhood(length, kernel_size)
            .with_stride(rng.random_range(1..=kernel_size))
            .with_dilation(rng.random_range(1..=length / kernel_size))
            .with_causal(rng.random())
    }

    #[test]
    fn windows_of_members_are_those_of_the_axis() {
        let mut rng = StdRng::seed_from_u64(21);
        for _ in 0..1000 {
            let axis = random_axis(&mut rng);
            let members = rng.random_range(1..=axis.keys.min(5));
            let mut cuts: BTreeSet<usize> = BTreeSet::new();
            while cuts.len() + 1 < members {
                cuts.insert(rng.random_range(1..axis.keys));
            }
            let ends: Vec<_> = cuts.into_iter().chain([axis.keys]).collect();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let shards: Vec<_> = starts.zip(&ends).map(|(start, end)| end - start).collect();
            check(&axis, &shards);
        }
    }

    #[test]
    fn every_small_axis_in_two() {
        for length in 2..=9usize {
            for kernel_size in 2..=length {
                for (stride, causal) in
                    (1..=kernel_size).flat_map(|stride| [(stride, false), (stride, true)])
                {
                    for dilation in 1..=length / kernel_size {
                        let axis = Axis::neighborhood(length, kernel_size)
                            .with_stride(stride)
                            .with_dilation(dilation)
                            .with_causal(causal);
                        (1..length).for_each(|cut| check(&axis, &[cut, length - cut]));
                    }
                }
            }
        }
    }

    #[test]
    fn a_halo_is_no_longer_than_it_has_to_be() {
        // Hunyuan's width and time, in halves: 12 keys to either side of a query, and 9.
        let width = HaloPlan::new(&Axis::neighborhood(80, 24), &[40, 40]).expect("fits");
        assert_eq!((width.members[0].keys.clone(), width.tokens_sent()), (0..51, 23));
        let time = HaloPlan::new(&Axis::neighborhood(30, 18), &[15, 15]).expect("fits");
        assert_eq!((time.members[1].keys.clone(), time.tokens_sent()), (6..30, 17));
        // Blocks that no cut divides need nothing of each other.
        let blocks = Axis::neighborhood(24, 4).with_stride(4);
        assert!(HaloPlan::new(&blocks, &[8, 12, 4]).expect("fits").sends.is_empty());
        // A causal axis needs what is before.
        let causal = Axis::neighborhood(24, 4).with_causal(true);
        let plan = HaloPlan::new(&causal, &[12, 12]).expect("fits");
        let send = HaloSend { from: 0, to: 1, tokens: 9..12 };
        assert_eq!(plan.sends, [send]);
    }

    #[test]
    fn shards_have_to_be_the_axis() {
        let axis = Axis::neighborhood(10, 3);
        let text = |shards: &[usize]| {
            HaloPlan::new(&axis, shards).expect_err("is to be refused").to_string()
        };
        assert_eq!(text(&[]), "members: is 0, must be at least 1");
        assert_eq!(text(&[10, 0]), "member 1: tokens: is 0, must be at least 1");
        assert_eq!(
            text(&[4, 5]),
            "tokens of all members: is 9, must be 10 (the length of the axis)"
        );
    }
}
