//! The backward pass.

pub mod edges;
mod host_time;
mod isolation;
mod large_scores;
mod layout;
mod parts;
pub mod random;
mod repeat;
pub mod run;
mod sample;
mod schedules;
mod slopes;
mod splits;
