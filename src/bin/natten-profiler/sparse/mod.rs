//! Sparse attention: `--block-sparse` and `--native-sparse`.

mod agreeing;
mod decode;
mod flags;
mod measure;
mod parts;
mod print;

pub use flags::{Job, Sparse};

use flags::Task;

use crate::args::Args;
use crate::failure::Failure;

/// Explains or measures, as the flags say.
pub fn run(job: &Job, args: &Args) -> Result<String, Failure> {
    if args.dry_run {
        let target = args.target.unwrap_or_else(|| args.device.backend.target());
        let plan = job.explain(args, target)?;
        return Ok(print::plan(job, args, target, &plan));
    }
    let found = match &job.task {
        Task::Native(options) if args.sparse.decode => decode::run(job, options, args)?,
        _ => measure::run(job, args)?,
    };
    Ok(found.print(job.describe(args), args))
}
