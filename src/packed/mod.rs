//! Packed batches: sequences, images or videos of different sizes, one behind the other, as a batch of one.
//!
//! ```text
//! tokens    | image 0 | image 1              | image 2      |
//! tensor    [1, total, heads, head_dim]
//! spaces    [8, 6]      [16, 12]               [10, 10]
//! ```
//!
//! Each is attended on its own, and nothing is padded. [`Lengths`] and [`Spaces`] say where they lie,
//! [`attention_packed`](crate::attention_packed) and [`na2d_packed`](crate::na2d_packed) attend; the
//! [guide](crate::guide::packed) has a page on it.

mod lengths;
mod spaces;
mod tokens;

pub use lengths::Lengths;
pub(crate) use lengths::ranges;
pub use spaces::{Spaces, Window};
pub use tokens::{pack, unpack};
