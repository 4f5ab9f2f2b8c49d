//! Lists of blocks: what native sparse attention selects, and on a device their inverse.

#[cfg(feature = "cube")]
mod check;
#[cfg(feature = "cube")]
mod importance;
#[cfg(feature = "cube")]
mod invert;
mod selection;
#[cfg(feature = "cube")]
mod top;

#[cfg(feature = "cube")]
#[cfg_attr(not(feature = "cuda"), allow(unused_imports))]
pub(crate) use check::{check_lists, check_selection};
#[cfg(feature = "cube")]
pub use importance::{select_blocks, select_blocks_with};
#[cfg(feature = "cube")]
pub use invert::{Inverse, invert};
pub use selection::{Selected, Selection};
#[cfg(feature = "cube")]
pub use top::top;
