//! `--dry-run`: what would run, and what bounds it, with no device.

use crate::args::Args;
use crate::failure::Failure;
use crate::print::{json, plan};
use crate::request::Request;

pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let target = args.target.unwrap_or_else(|| args.device.backend.target());
    let explanation = request.explain(args, target)?;
    Ok(if args.json {
        json::text(json::plan(request, target, &explanation))
    } else {
        plan::text(request, target, &explanation, args.passes())
    })
}
