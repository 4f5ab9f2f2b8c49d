//! What users call.

mod attention;
pub(crate) mod block_sparse;
pub(crate) mod inputs;
mod merge;
mod neighborhood;
mod packed;
mod plans;
mod unfused;

pub use attention::{AttentionOutput, attention, try_attention};
pub use block_sparse::{
    BlockSparseOutput, block_sparse1d, block_sparse2d, block_sparse3d, try_block_sparse1d,
    try_block_sparse2d, try_block_sparse3d,
};
pub use merge::{merge_attentions, try_merge_attentions};
pub(crate) use neighborhood::neighborhood;
pub use neighborhood::{NeighborhoodOutput, na1d, na2d, na3d, try_na1d, try_na2d, try_na3d};
pub use packed::{
    attention_packed, na1d_packed, na2d_packed, na3d_packed, try_attention_packed, try_na1d_packed,
    try_na2d_packed, try_na3d_packed,
};
pub use unfused::{
    na1d_av, na1d_qk, na2d_av, na2d_qk, na3d_av, na3d_qk, try_na1d_av, try_na1d_qk, try_na2d_av,
    try_na2d_qk, try_na3d_av, try_na3d_qk,
};
