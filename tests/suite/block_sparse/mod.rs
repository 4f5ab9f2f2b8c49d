//! Block-sparse attention.

mod errors;
mod isolation;
mod lists;
mod oracle;
mod random;
mod run;
mod views;
