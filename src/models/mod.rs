//! Models of the papers.

pub mod hdit;
