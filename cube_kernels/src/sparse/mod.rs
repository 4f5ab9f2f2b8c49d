//! Lists of blocks on the device: their inverse, and those that native sparse attention selects.

mod check;
mod invert;

pub(crate) use check::check_lists;
pub use invert::{Inverse, invert};
