//! What the tool does: one file a command.

pub mod dry_run;
pub mod list;
pub mod optimize;
pub mod plain;
