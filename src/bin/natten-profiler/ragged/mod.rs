//! Packed batches: `--ragged`.

mod measure;
mod sizes;

pub use sizes::{Job, WITHOUT};

use crate::args::Args;
use crate::failure::Failure;

/// Counts or measures, as the flags say.
pub fn run(job: &Job, args: &Args) -> Result<String, Failure> {
    if args.dry_run {
        return Ok(job.summary(args));
    }
    Ok(measure::run(job, args)?.print(job.describe(args), args))
}
