//! Packed batches: `--ragged`.

mod measure;
mod sizes;
mod uniform;

pub use sizes::{Job, WITHOUT};

use crate::args::Args;
use crate::failure::Failure;

/// Counts or measures, as the flags say.
pub fn run(job: &Job, args: &Args) -> Result<String, Failure> {
    if args.dry_run {
        return Ok(job.summary(args));
    }
    let found = measure::run(job, args)?;
    if args.uniform {
        return Ok(uniform::run(job, args)?.print(&found, job.describe(args), args));
    }
    Ok(found.print(job.describe(args), args))
}
