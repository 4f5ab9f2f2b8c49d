//! What was found, for people and for machines.

pub mod json;
pub mod measured;
pub mod plan;
pub mod table;
