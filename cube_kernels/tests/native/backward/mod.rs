//! The backward pass.

pub mod edges;
mod host_time;
mod isolation;
mod large_scores;
mod layout;
mod parts;
mod random;
mod repeat;
mod run;
mod sample;
mod schedules;
