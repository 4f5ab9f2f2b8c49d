//! Cooperative matrices, whose fragments are the runtime's: which unit holds what is not known, so that scores, weights and,
//! in the end, sums pass through shared memory.
//!
//! A plane has as many rows as a matrix. Where their scores lie in shared memory, the units of a plane share each row: one
//! has every [`stripes`](super::Blueprint::stripes)th of its columns.

mod products;
mod results;

pub(super) use products::{Sums, accumulate, no_sums, score};
pub(super) use results::{Place, Written, place, residue, row_sum, spoiled_rows, write_rows};
