//! Block-sparse attention.

mod errors;
mod isolation;
mod oracle;
mod random;
mod run;
mod views;
