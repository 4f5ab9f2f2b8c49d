use burn::tensor::DType;

use crate::Strategy;

/// Why an attention problem cannot be computed.
///
/// The text names the argument, the axis, the value that was given and the bound it breaks:
///
/// ```rust
/// use burn_natten::{AttentionError, NeighborhoodOptions};
///
/// let error = NeighborhoodOptions::<2>::new([3, 9]).axes([8, 8]).expect_err("9 keys of 8");
/// assert_eq!(
///     error.to_string(),
///     "kernel_size: axis 1 is 9, must be at most 8 (the length of the axis)"
/// );
/// assert!(matches!(error, AttentionError::TooLarge { axis: 1, got: 9, max: 8, .. }));
/// ```
///
/// The guide has a [page on errors](crate::guide::errors).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttentionError {
    /// A size of one tensor does not fit that of another.
    #[error("{argument}: axis {axis} ({name}) is {got}, must be {expected} as in {other}")]
    Shape {
        /// The tensor at fault.
        argument: &'static str,
        /// Its axis.
        axis: usize,
        /// What the axis means.
        name: &'static str,
        /// The size it has.
        got: usize,
        /// The size it must have.
        expected: usize,
        /// The tensor that sets the size.
        other: &'static str,
    },
    /// A tensor has the wrong number of axes.
    #[error("{argument}: has {got} axes, must have {expected}")]
    Rank {
        /// The tensor at fault.
        argument: &'static str,
        /// The axes it has.
        got: usize,
        /// The axes it must have.
        expected: usize,
    },
    /// A tensor has a size of zero where something is needed.
    #[error("{argument}: axis {axis} ({name}) is 0, must be at least 1")]
    Empty {
        /// The tensor at fault.
        argument: &'static str,
        /// Its axis.
        axis: usize,
        /// What the axis means.
        name: &'static str,
    },
    /// The heads of the query cannot be shared out over the heads of the key.
    #[error("query: has {heads} heads, must be a multiple of the {heads_kv} heads of key")]
    Heads {
        /// Heads of the query.
        heads: usize,
        /// Heads of key and value.
        heads_kv: usize,
    },
    /// The heads of attention weights cannot be shared out over the heads of the value.
    #[error("weights: has {heads} heads, must be a multiple of the {heads_kv} heads of value")]
    WeightsHeads {
        /// Heads of the weights.
        heads: usize,
        /// Heads of the value.
        heads_kv: usize,
    },
    /// A window parameter is below its least value.
    #[error("{parameter}: axis {axis} is {got}, must be at least {min}")]
    TooSmall {
        /// The parameter at fault.
        parameter: &'static str,
        /// The spatial axis, 0 for the slowest.
        axis: usize,
        /// The value it has.
        got: usize,
        /// The least value it can have.
        min: usize,
    },
    /// A window parameter is above its greatest value.
    #[error("{parameter}: axis {axis} is {got}, must be at most {max} ({bound})")]
    TooLarge {
        /// The parameter at fault.
        parameter: &'static str,
        /// The spatial axis, 0 for the slowest.
        axis: usize,
        /// The value it has.
        got: usize,
        /// The greatest value it can have.
        max: usize,
        /// What sets the bound.
        bound: &'static str,
    },
    /// A relative position bias has not one entry for each distance that a window can hold.
    #[error(
        "bias: axis {axis} is {got}, must be {expected} (2 * kernel_size - 1, kernel_size is {kernel_size})"
    )]
    BiasLength {
        /// The axis of the bias, of which the first one, 0, is that of the heads.
        axis: usize,
        /// The length it has.
        got: usize,
        /// The length it must have.
        expected: usize,
        /// Keys of a window along the spatial axis `axis - 1`.
        kernel_size: usize,
    },
    /// There are lists neither for each head of the query nor for each of the key.
    #[error("blocks: axis 2 (heads) is {got}, must be {heads} as in query or {heads_kv} as in key")]
    ListHeads {
        /// Heads that have lists.
        got: usize,
        /// Heads of the query.
        heads: usize,
        /// Heads of key and value.
        heads_kv: usize,
    },
    /// An entry of a list of blocks is neither `-1` nor a block.
    #[error(
        "blocks: entry {entry:?} is {got}, must be -1 or less than {key_blocks} (blocks of keys)"
    )]
    NoBlock {
        /// Where it stands: sample, block of queries, head, place in the list.
        entry: [usize; 4],
        /// What it is.
        got: i64,
        /// Blocks of keys there are.
        key_blocks: usize,
    },
    /// A list of blocks has a block twice, so that its keys count twice.
    #[error("blocks: list {list:?} has block {block} twice, must have it at most once")]
    RepeatedBlock {
        /// The list: sample, block of queries, head.
        list: [usize; 3],
        /// The block.
        block: i64,
    },
    /// A parameter, or a size of the arguments, is out of its bounds.
    #[error("{parameter}: is {got}, must be {bound}")]
    Parameter {
        /// The parameter at fault.
        parameter: &'static str,
        /// The value it has.
        got: usize,
        /// What it must be, and what says so.
        bound: String,
    },
    /// A sequence of a packed batch is at fault.
    #[error("sequence {sequence}: {error}")]
    Sequence {
        /// Its number.
        sequence: usize,
        /// What is wrong with it.
        error: Box<AttentionError>,
    },
    /// A member of a sharded operator is at fault.
    #[error("member {member}: {error}")]
    Member {
        /// Its number.
        member: usize,
        /// What is wrong with it.
        error: Box<AttentionError>,
    },
    /// Two devices can exchange tensors through the host alone, which nobody has allowed.
    #[error(
        "members: {from} and {to} have no transport between them, must have one (libnccl where the loader looks), or \
         Context::with_host_exchange must allow the host"
    )]
    NoTransport {
        /// The device of one member.
        from: String,
        /// That of another.
        to: String,
    },
    /// The scale is infinite or not a number.
    #[error("scale: is {got}, must be finite")]
    Scale {
        /// The value given.
        got: f64,
    },
    /// Additional keys were given without additional values, or the reverse.
    #[error("{missing}: is missing, must be given together with {given}")]
    AdditionalKv {
        /// The argument that is not there.
        missing: &'static str,
        /// The argument that is there.
        given: &'static str,
    },
    /// The element types of the arguments differ.
    #[error("{argument}: has dtype {got:?}, must be {expected:?} as in {other}")]
    MixedDTypes {
        /// The tensor at fault.
        argument: &'static str,
        /// Its element type.
        got: DType,
        /// The element type it must have.
        expected: DType,
        /// The tensor that sets it.
        other: &'static str,
    },
    /// The element type is not one that attention is defined for.
    #[error("{argument}: has dtype {got:?}, must be F32, F16, BF16 or F64{note}")]
    UnsupportedDType {
        /// The tensor at fault.
        argument: &'static str,
        /// Its element type.
        got: DType,
        /// What else is to be said about this device.
        note: &'static str,
    },
    /// The arguments live on different devices.
    #[error("{argument}: is on {got}, must be on {expected} as {other}")]
    MixedDevices {
        /// The tensor at fault.
        argument: &'static str,
        /// Its device.
        got: String,
        /// The device it must be on.
        expected: String,
        /// The tensor that sets it.
        other: &'static str,
    },
    /// There is nothing to merge.
    #[error("outputs: has 0 tensors, must have at least 1")]
    EmptyMerge,
    /// The outputs and logsumexps to merge do not pair up.
    #[error("logsumexps: has {got} tensors, must have {expected} as outputs")]
    MergeCount {
        /// Number of logsumexps.
        got: usize,
        /// Number of outputs.
        expected: usize,
    },
    /// A strategy that was asked for by name cannot run.
    #[error("strategy: {strategy:?} cannot run here, {reason}")]
    Strategy {
        /// The strategy asked for.
        strategy: Strategy,
        /// What stands in its way.
        reason: String,
    },
    /// The device failed while it ran, or computed something that is not a number.
    #[error("device: failed, {reason}")]
    Execution {
        /// What the device or the check of its results says.
        reason: String,
    },
    /// Burn runs on a backend that this build of burn-natten has no operators for.
    #[error("query: is on {device}, which needs one of burn-natten's backend features")]
    UnsupportedBackend {
        /// The device of the tensors.
        device: String,
    },
}

impl AttentionError {
    /// The same of a sequence of a packed batch.
    pub(crate) fn of_sequence(self, sequence: usize) -> Self {
        Self::Sequence { sequence, error: Box::new(self) }
    }

    /// The same of a member of a sharded operator.
    pub(crate) fn of_member(self, member: usize) -> Self {
        Self::Member { member, error: Box::new(self) }
    }
}
