//! Without `--dry-run` and `--optimize`: measures what the strategy chooses.

use crate::args::Args;
use crate::failure::Failure;
use crate::measure::{self, Bench};
use crate::print::{json, measured};
use crate::request::Request;

pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let bench = Bench::open(request, args)?;
    let candidate = request.explain(args, bench.target())?.chosen;
    let passes = args.passes();
    let bar = measure::progress(passes.len() as u64 + 1);
    bar.set_message("peaks of the device");
    let machine = bench.machine();
    let mut measurements = Vec::new();
    for pass in passes {
        bar.inc(1);
        bar.set_message(pass.name());
        let measured = bench.measure(&candidate, *pass);
        measurements.push(measured.map_err(|error| Failure::Run(error.to_string()))?);
    }
    bar.finish_and_clear();
    Ok(if args.json {
        json::text(json::measurements(request, &machine, &measurements))
    } else {
        measured::measurements(request, &machine, &measurements)
    })
}
