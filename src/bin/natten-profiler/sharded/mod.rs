//! Tokens in shards on several devices, by every split, beside one device: `--devices`.

mod measure;
mod print;
mod ways;

use burn_natten::parallel::{Cluster, Link, estimates};
use burn_natten::plan::Sizes;
use burn_natten_kernels::MAX_RANK;

use crate::args::Args;
use crate::failure::Failure;
use crate::request::{Request, usage};

/// Flags that shards have no use for.
pub const WITHOUT: [&str; 8] =
    ["device", "ragged", "block_sparse", "native_sparse", "unfused", "add_kv", "bias", "target"];

/// What is taken to be between the devices where nothing is measured.
const LINK: Link = Link::NVLINK;

/// Measures the problem on one device, and in shards by every split; or says what each split is expected to take.
pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    match request.problem.rank() {
        rank if args.dry_run => {
            let found = match rank {
                1 => expected::<1>(request, args),
                2 => expected::<2>(request, args),
                _ => expected::<3>(request, args),
            };
            Ok(print::estimates(request, args, &found?))
        }
        _ => {
            let found = measure::run(request, args)?;
            Ok(print::measurements(request, args, &found))
        }
    }
}

/// What the model of the library expects of each split.
fn expected<const N: usize>(
    request: &Request,
    args: &Args,
) -> Result<Vec<burn_natten::parallel::Estimate>, Failure> {
    let problem = &request.problem;
    if is_dense(request) {
        let text = "--dry-run: with --devices needs a --window-size; dense splits have no model";
        return Err(Failure::Usage(text.to_string()));
    }
    let sizes = Sizes {
        batch: problem.batch,
        heads: problem.heads,
        heads_kv: problem.heads_kv,
        head_dim_v: problem.head_dim_v,
        ..Sizes::new(problem.head_dim)
    };
    let space = std::array::from_fn(|axis| problem.axes[MAX_RANK - N + axis].queries);
    let cluster = Cluster {
        members: args.devices.len(),
        target: args.devices[0].backend.target(),
        dtype: request.dtype.dtype(),
        link: LINK,
    };
    estimates(&sizes, space, &request.options::<N>(args), &cluster).map_err(usage)
}

/// Whether the problem is dense attention, which has splits of its own.
fn is_dense(request: &Request) -> bool {
    request.problem.rank() == 1 && request.problem.axes[MAX_RANK - 1].is_dense()
}
