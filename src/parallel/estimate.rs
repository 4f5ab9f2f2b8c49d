use std::fmt;

use burn::tensor::DType;
use burn_natten_kernels::Problem;

use super::plan::{HaloPlan, MemberPlan};
use super::shards::even_shards;
use super::split::Split;
use crate::plan::{Sizes, Target, explain};
use crate::{AttentionError, Context, NeighborhoodOptions, Strategy};

/// How fast tensors travel from device to device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second, in or out of a device.
    pub bandwidth: f64,
    /// Seconds that an exchange takes besides, however small it is.
    pub latency: f64,
}

impl Link {
    /// NVLink between two NVIDIA H200 through NCCL, measured: 256 MiB at a time, and 1 MiB.
    pub const NVLINK: Self = Self { bandwidth: 357e9, latency: 25e-6 };
}

/// Devices of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// How many.
    pub members: usize,
    /// The kind.
    pub target: Target,
    /// The type of the tensors.
    pub dtype: DType,
    /// What is between them.
    pub link: Link,
}

/// What a split of windows costs, expected by a model.
///
/// A member computes what [`explain`] expects of its part of the problem. A device sends and receives one tensor after another, as
/// today's exchanges do, and computes before or after: nothing overlaps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The split.
    pub split: Split,
    /// Bytes that travel in the forward pass, of all members. Gradients travel as many back.
    pub bytes: u64,
    /// Seconds that the busiest device sends and receives, in either pass.
    pub transfer: f64,
    /// Seconds that the slowest member computes in the forward pass.
    pub forward: f64,
    /// Seconds that the slowest member computes in the backward pass.
    pub backward: f64,
}

impl Estimate {
    /// Seconds of a forward and a backward pass.
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward + 2.0 * self.transfer
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes as f64 / 1e6;
        let [forward, backward] =
            [self.forward, self.backward].map(|seconds| (seconds + self.transfer) * 1e3);
        let text = format!(
            "{}: {megabytes:.1} MB, {forward:.3} ms forward, {backward:.3} ms backward",
            self.split
        );
        f.pad(&text)
    }
}

impl Split {
    /// The split that is expected to be the fastest in training, along whatever axis.
    ///
    /// # Errors
    ///
    /// As [`estimates`]; and [`AttentionError::Parameter`] if no split fits.
    ///
    /// # Example
    ///
    /// ```rust
    /// use burn::tensor::DType;
    /// use burn_natten::NeighborhoodOptions;
    /// use burn_natten::parallel::{Cluster, Link, Split};
    /// use burn_natten::plan::{Sizes, Target};
    ///
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// // A video on two H200.
    /// let sizes = Sizes { heads: 24, heads_kv: 24, ..Sizes::new(128) };
    /// let options = NeighborhoodOptions::<3>::new([18, 24, 24]);
    /// let target = Target::Cuda { sm: 90 };
    /// let cluster = Cluster { members: 2, target, dtype: DType::BF16, link: Link::NVLINK };
    /// let split = Split::auto(&sizes, [30, 48, 80], &options, &cluster)?;
    /// assert!(matches!(split, Split::Halo { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn auto<const N: usize>(
        sizes: &Sizes,
        space: [usize; N],
        options: &NeighborhoodOptions<N>,
        cluster: &Cluster,
    ) -> Result<Self, AttentionError> {
        let best = estimates(sizes, space, options, cluster)?.into_iter().next();
        let split = best.map(|estimate| estimate.split);
        let bound = "at most the tokens of some axis".to_string();
        let (parameter, got) = ("members", cluster.members);
        split.ok_or(AttentionError::Parameter { parameter, got, bound })
    }
}

/// What the splits of a problem are expected to cost, the fastest in training first: along each axis that has a token for each member, by
/// halo, and by heads where they can be shared out. Shards are as even as can be. Needs no device.
///
/// # Errors
///
/// [`AttentionError`] if the operator would refuse the problem, or there is no member.
///
/// # Example
///
/// ```rust
/// use burn::tensor::DType;
/// use burn_natten::NeighborhoodOptions;
/// use burn_natten::parallel::{Cluster, Link, Split, estimates};
/// use burn_natten::plan::{Sizes, Target};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let target = Target::Cuda { sm: 90 };
/// let cluster = Cluster { members: 4, target, dtype: DType::F16, link: Link::NVLINK };
/// // Two heads for four members, and two rows: the width alone can be split, by halo.
/// let sizes = Sizes { heads: 2, heads_kv: 2, ..Sizes::new(64) };
/// let options = NeighborhoodOptions::<2>::new([2, 7]);
/// let all = estimates(&sizes, [2, 56], &options, &cluster)?;
/// assert_eq!((all.len(), all[0].split), (1, Split::Halo { axis: 1 }));
/// println!("{}", all[0]);
/// # Ok(())
/// # }
/// ```
pub fn estimates<const N: usize>(
    sizes: &Sizes,
    space: [usize; N],
    options: &NeighborhoodOptions<N>,
    cluster: &Cluster,
) -> Result<Vec<Estimate>, AttentionError> {
    if cluster.members == 0 {
        let bound = "at least 1".to_string();
        return Err(AttentionError::Parameter { parameter: "members", got: 0, bound });
    }
    let problem = sizes.neighborhood(&space, options.windows(), options.common.scale)?;
    let mut all = vec![];
    for (axis, length) in space.into_iter().enumerate().filter(|axis| axis.1 >= cluster.members) {
        let model =
            Model { problem, space, axis, shards: even_shards(length, cluster.members), cluster };
        if problem.heads_kv.is_multiple_of(cluster.members) {
            all.push(model.heads()?);
        }
        all.push(model.halo(options)?);
    }
    all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    Ok(all)
}

/// A problem whose tokens are split along an axis.
struct Model<'a, const N: usize> {
    problem: Problem,
    space: [usize; N],
    axis: usize,
    shards: Vec<usize>,
    cluster: &'a Cluster,
}

impl<const N: usize> Model<'_, N> {
    fn heads(&self) -> Result<Estimate, AttentionError> {
        let (problem, members) = (&self.problem, self.cluster.members);
        let size = self.cluster.dtype.size();
        let part =
            problem.with_heads(problem.heads / members).with_heads_kv(problem.heads_kv / members);
        let row = |heads: usize, dim: usize| heads * dim * size;
        let input =
            row(part.heads, part.head_dim) + row(part.heads_kv, part.head_dim + part.head_dim_v);
        let output = row(part.heads, part.head_dim_v) + part.heads * size_of::<f32>().max(size);
        let mut traffic = Traffic::new(members);
        for (from, tokens) in self.shards.iter().enumerate() {
            for to in (0..members).filter(|to| *to != from) {
                // Query, key and value; and, on the way back, output and logsumexp.
                traffic.add((from, to), tokens * self.slice() * input, 3);
                traffic.add((to, from), tokens * self.slice() * output, 2);
            }
        }
        self.estimate(Split::Heads { axis: self.axis }, &traffic, &[part])
    }

    fn halo(&self, options: &NeighborhoodOptions<N>) -> Result<Estimate, AttentionError> {
        let problem = &self.problem;
        let axes = options.axes(self.space)?;
        let plan = HaloPlan::new(&axes[self.axis], &self.shards)?;
        let row = problem.heads_kv * (problem.head_dim + problem.head_dim_v);
        let row = row * self.cluster.dtype.size();
        let mut traffic = Traffic::new(self.shards.len());
        for send in &plan.sends {
            traffic.add((send.from, send.to), send.tokens.len() * self.slice() * row, 2);
        }
        let part = |member: &MemberPlan| {
            let mut axes = axes;
            axes[self.axis] = member.axis;
            problem.with_axes(axes)
        };
        let parts: Vec<_> = plan.members.iter().map(part).collect();
        self.estimate(Split::Halo { axis: self.axis }, &traffic, &parts)
    }

    /// Tokens of all samples at one place of the axis.
    fn slice(&self) -> usize {
        let others = self.space.iter().enumerate().filter(|(axis, _)| *axis != self.axis);
        self.problem.batch * others.map(|(_, length)| length).product::<usize>()
    }

    fn estimate(
        &self,
        split: Split,
        traffic: &Traffic,
        parts: &[Problem],
    ) -> Result<Estimate, AttentionError> {
        let Cluster { target, dtype, link, .. } = *self.cluster;
        let (mut forward, mut backward) = (0.0, 0.0);
        for part in parts {
            let plan = explain(part, dtype, target, Strategy::Auto, Context::current())?;
            forward = plan.chosen.forward.seconds.max(forward);
            backward = plan.chosen.backward.seconds.max(backward);
        }
        let transfer = traffic.seconds(&link);
        Ok(Estimate { split, bytes: traffic.bytes, transfer, forward, backward })
    }
}

/// What members exchange in a pass.
struct Traffic {
    bytes: u64,
    /// Bytes in and out of each member, and exchanges that it takes part in.
    members: Vec<(u64, u64)>,
}

impl Traffic {
    fn new(members: usize) -> Self {
        Self { bytes: 0, members: vec![(0, 0); members] }
    }

    fn add(&mut self, (from, to): (usize, usize), bytes: usize, exchanges: u64) {
        self.bytes += bytes as u64;
        for member in [from, to] {
            self.members[member].0 += bytes as u64;
            self.members[member].1 += exchanges;
        }
    }

    fn seconds(&self, link: &Link) -> f64 {
        let of = |(bytes, exchanges): &(u64, u64)| {
            *bytes as f64 / link.bandwidth + *exchanges as f64 * link.latency
        };
        self.members.iter().map(of).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { heads: 24, heads_kv: 24, ..Sizes::new(128) };

    fn cluster(members: usize) -> Cluster {
        let target = Target::Cuda { sm: 90 };
        Cluster { members, target, dtype: DType::BF16, link: Link::NVLINK }
    }

    fn find(all: &[Estimate], split: Split) -> &Estimate {
        all.iter().find(|estimate| estimate.split == split).expect("is one of them")
    }

    /// Of Hunyuan on two devices, as it is counted by hand.
    #[test]
    fn bytes_are_those_that_travel() {
        let options = NeighborhoodOptions::<3>::new([18, 24, 24]);
        let all = estimates(&SIZES, [30, 48, 80], &options, &cluster(2)).expect("fits");
        assert_eq!(all.len(), 6);
        let row = 24 * 128 * 2;
        let halo = find(&all, Split::Halo { axis: 2 });
        assert_eq!(halo.bytes, (11 + 12) * 30 * 48 * 2 * row);
        let halo = find(&all, Split::Halo { axis: 0 });
        assert_eq!(halo.bytes, (8 + 9) * 48 * 80 * 2 * row);
        // Half of each of four tensors, and of the logsumexp.
        let tokens = 30 * 48 * 80;
        let heads = find(&all, Split::Heads { axis: 1 });
        assert_eq!(heads.bytes, tokens * (4 * row / 2 + 12 * 4));
        // A device of the two sees all that travels.
        assert_eq!(heads.transfer, heads.bytes as f64 / 357e9 + 10.0 * 25e-6);
    }

    #[test]
    fn a_halo_is_expected_to_be_cheaper_than_heads() {
        let options = NeighborhoodOptions::<3>::new([18, 24, 24]);
        let all = estimates(&SIZES, [30, 48, 80], &options, &cluster(2)).expect("fits");
        assert!(matches!(all[0].split, Split::Halo { .. }), "{all:?}");
        let split = Split::auto(&SIZES, [30, 48, 80], &options, &cluster(2));
        assert_eq!(split, Ok(all[0].split));
    }

    #[test]
    fn one_member_exchanges_nothing() {
        let options = NeighborhoodOptions::<2>::new(7);
        let all = estimates(&SIZES, [56, 56], &options, &cluster(1)).expect("fits");
        assert!(all.iter().all(|estimate| estimate.bytes == 0 && estimate.transfer == 0.0));
        let part = all[0].forward;
        assert!(all.iter().all(|estimate| estimate.forward == part && part > 0.0));
        let two = estimates(&SIZES, [56, 56], &options, &cluster(2)).expect("fits");
        assert!(two.iter().all(|estimate| estimate.forward < part), "{two:?}");
    }

    #[test]
    fn a_slow_link_wants_few_bytes_and_a_fast_one_even_shares() {
        let options = NeighborhoodOptions::<2>::new([7, 40]);
        let with = |link| Cluster { link, ..cluster(3) };
        let first = |link| Split::auto(&SIZES, [64, 64], &options, &with(link)).expect("fits");
        // A window of 7 rows reaches 3 rows of others.
        let slow = Link { bandwidth: 1e9, latency: 0.0 };
        assert_eq!(first(slow), Split::Halo { axis: 0 });
        let fast = Link { bandwidth: f64::INFINITY, latency: 0.0 };
        let best = estimates(&SIZES, [64, 64], &options, &with(fast)).expect("fits");
        assert!(best.iter().all(|estimate| estimate.transfer == 0.0));
        assert!(best.windows(2).all(|pair| pair[0].seconds() <= pair[1].seconds()));
        // 64 tokens are no multiple of 3, and 24 heads are.
        assert!(matches!(best[0].split, Split::Heads { .. }), "{best:?}");
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        let options = NeighborhoodOptions::<1>::new(3);
        let text = |members, length: usize| {
            let split = Split::auto(&SIZES, [length], &options, &cluster(members));
            split.expect_err("is to be refused").to_string()
        };
        assert_eq!(text(0, 9), "members: is 0, must be at least 1");
        assert_eq!(text(5, 4), "members: is 5, must be at most the tokens of some axis");
        assert_eq!(
            text(2, 2),
            "kernel_size: axis 0 is 3, must be at most 2 (the length of the axis)"
        );
    }
}
