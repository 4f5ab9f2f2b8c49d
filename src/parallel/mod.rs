//! Attention on several devices: tokens lie in shards, one on each.
//!
//! ```text
//! tokens       0 ........................ 29          along one axis
//! members      | member 0    | member 1    |
//! devices      | cuda:0      | cuda:1      |          any, and one several times
//! ```
//!
//! A sharded operator takes a `Vec` of queries, of keys and of values, one of each for every member, and returns the outputs of the members'
//! own queries: those that one device would give, and so are the gradients. Everything else of a model works on tokens, and runs on the
//! shards as they are. [`split_tokens`] makes shards, and [`join_tokens`] a tensor of them.
//!
//! Members exchange what they need by [`exchange`]; [`HaloPlan`] says what that is where windows are split, and [`estimates`] what it
//! costs. The [guide](crate::guide::multi_gpu) has a page on it.

mod dense;
mod estimate;
mod exchange;
mod members;
mod neighborhood;
mod options;
mod plan;
mod replicate;
mod shards;
mod split;
mod tokens;

pub use dense::{DenseSplit, attention_sharded, try_attention_sharded};
pub use estimate::{Cluster, Estimate, Link, estimates};
pub use exchange::{exchange, try_exchange};
pub use neighborhood::{
    na1d_sharded, na2d_sharded, na3d_sharded, try_na1d_sharded, try_na2d_sharded, try_na3d_sharded,
};
pub use plan::{HaloPlan, HaloSend, MemberPlan};
pub use replicate::replicate;
pub use shards::even_shards;
pub use split::Split;
pub use tokens::{
    join_tokens, split_tokens, split_tokens_into, try_join_tokens, try_split_tokens,
    try_split_tokens_into,
};
