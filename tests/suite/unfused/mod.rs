//! The unfused operators.

mod golden;
mod oracle;
mod run;
