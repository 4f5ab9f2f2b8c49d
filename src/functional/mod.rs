//! What users call.

mod attention;
mod inputs;
mod merge;
mod neighborhood;

pub use attention::{AttentionOutput, attention, try_attention};
pub use merge::{merge_attentions, try_merge_attentions};
pub use neighborhood::{NeighborhoodOutput, na1d, na2d, na3d, try_na1d, try_na2d, try_na3d};
