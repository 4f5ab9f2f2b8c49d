//! Both halves of attention apart, their weights in memory: `--unfused`.

mod measure;
mod print;

use burn_natten_kernels::{MAX_RANK, Problem};

use crate::args::Args;
use crate::failure::Failure;
use crate::request::Request;

/// Flags that the halves have no use for.
pub const WITHOUT: [&str; 6] =
    ["ragged", "block_sparse", "native_sparse", "add_kv", "bias", "dry_run"];

/// One half.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Half {
    /// Scores of the windows.
    Qk,
    /// Sums of their values.
    Av,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Self::Qk => "qk",
            Self::Av => "av",
        }
    }

    /// Its inputs.
    fn inputs(self) -> [&'static str; 2] {
        match self {
            Self::Qk => ["query", "key"],
            Self::Av => ["weights", "value"],
        }
    }

    /// Bytes of its tensors of each pass, each met once.
    fn bytes(self, problem: &Problem, size: usize) -> [u64; 2] {
        let of = |heads, tokens, length| (problem.batch * heads * tokens * length * size) as u64;
        let tokens = |of: fn(&burn_natten_kernels::Axis) -> usize| -> usize {
            problem.axes.iter().map(of).product()
        };
        let queries = tokens(|axis| axis.queries);
        let window = problem.axes.iter().map(|axis| axis.kernel_size).product();
        let weights = of(problem.heads, queries, window);
        let dim = match self {
            Self::Qk => problem.head_dim,
            Self::Av => problem.head_dim_v,
        };
        let rows = of(problem.heads, queries, dim);
        let space = of(problem.heads_kv, tokens(|axis| axis.keys), dim);
        // Two tensors have gradients, and that of the third is read.
        match self {
            Self::Qk => [rows + space + weights, 2 * (rows + space) + weights],
            Self::Av => [weights + space + rows, 2 * (weights + space) + rows],
        }
    }
}

/// Measures both halves of the problem.
pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let problem = &request.problem;
    if problem.rank() == 1 && problem.axes[MAX_RANK - 1].is_dense() {
        return Err(Failure::Usage("--unfused: needs a --window-size".to_string()));
    }
    let found = measure::run(request, args)?;
    Ok(print::measurements(request, &found, args.json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Parsed, parse};

    #[test]
    fn bytes_are_those_of_every_tensor_once() {
        let flags =
            "natten-profiler -i 8 5 -b 3 -n 4 --heads-kv 2 -d 16 --dim-value 32 -w 3 5 --unfused";
        let Ok(Parsed::Run(args)) = parse(flags.split(' ')) else {
            panic!("the flags are refused")
        };
        let Ok(request) = Request::new(&args) else { panic!("the problem is refused") };
        let (weights, query, key) = (3 * 40 * 4 * 15, 3 * 40 * 4 * 16, 3 * 40 * 2 * 16);
        let qk = Half::Qk.bytes(&request.problem, 2);
        assert_eq!(qk, [2 * (weights + query + key), 2 * (weights + 2 * (query + key))]);
        let av = Half::Av.bytes(&request.problem, 4);
        let (value, out) = (2 * key, 2 * query);
        assert_eq!(av, [4 * (weights + value + out), 4 * (2 * (weights + value) + out)]);
    }
}
