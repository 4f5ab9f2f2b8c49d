//! Attention of blocks of queries to listed blocks of keys, for every CubeCL runtime.
//!
//! What is computed is that of [`BlockSparse`](crate::BlockSparse). A unit owns a row, or a slice of one, and walks over the
//! blocks of its list; in each it loads the part that the row sees, which is a box, since a causal axis ends it sooner. So
//! nothing is masked, and what a query does not see cannot reach it, NaN or not.
//!
//! ```text
//! out, lse    one unit per query row and slice, over the listed blocks
//! dq          the same walk once more
//! dk, dv      a few units per key row and slice, over the blocks of queries that list the key's, by `sparse::invert`
//! ```
//!
//! Queries, keys, values and the output's gradient may be views; the rest is contiguous. All sums are held in `f32` and added
//! up in a fixed order. No kernel has more than 8 buffers, for WGSL.

mod backward;
mod forward;
mod launch;
mod space;
pub(crate) mod vectors;

pub use launch::{backward, backward_with, forward};
