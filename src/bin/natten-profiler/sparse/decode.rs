//! `--decode`: one more token for each sequence of a batch, whose other tokens are in a cache.

use std::cell::RefCell;

use burn::tensor::{Device, Tensor};
use burn_natten::{AttentionError, NativeSparseAttentionOptions, NativeSparseCache};

use super::flags::{Job, window};
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::passes::{self, Found};

/// Tokens of all samples that are brought at a time: queries of a whole sequence may be more than memory holds.
const AT_A_TIME: usize = 1 << 15;

/// Times a token. The cache has as many as the input to begin with, and grows by those that are timed.
pub fn run(
    job: &Job,
    options: &NativeSparseAttentionOptions,
    args: &Args,
) -> Result<Found, Failure> {
    let device = device::open(args.device, args.dtype)?;
    let token = Token { job, options, args };
    // Without gradients: `--backprop` is refused.
    let found = passes::run(&token, args, &device, [token.flops(), 0])?;
    let passes = found.passes.into_iter().map(|measured| measured.of("a token")).collect();
    Ok(Found { passes, ..found })
}

struct Token<'a> {
    job: &'a Job,
    options: &'a NativeSparseAttentionOptions,
    args: &'a Args,
}

/// A cache, and the token that is appended time and again.
struct Inputs {
    cache: RefCell<NativeSparseCache>,
    token: [Tensor<4>; 4],
}

impl Token<'_> {
    fn tokens(&self) -> usize {
        self.job.space[0]
    }

    /// Operations of both products of all branches.
    fn flops(&self) -> u64 {
        let (sizes, flags) = (self.job.sizes, &self.args.sparse);
        // With its own.
        let tokens = self.tokens() + 1;
        let compressed = self.options.compressed_blocks(tokens);
        let selected = flags.num_selected.saturating_mul(flags.slc_block).min(tokens);
        let keys = compressed + selected + window(self.args).min(tokens);
        let vectors = sizes.head_dim + sizes.head_dim_v;
        2 * (sizes.batch * sizes.heads * vectors) as u64 * keys as u64
    }

    /// Query, key, value and gates of some tokens, by chance.
    fn some(&self, count: usize, device: &Device) -> [Tensor<4>; 4] {
        let sizes = self.job.sizes;
        [
            (sizes.heads, sizes.head_dim),
            (sizes.heads_kv, sizes.head_dim),
            (sizes.heads_kv, sizes.head_dim_v),
            (sizes.heads, 3),
        ]
        .map(|(heads, dim)| passes::random(self.args, [sizes.batch, count, heads, dim], device))
    }
}

impl passes::Call for Token<'_> {
    type Inputs = Result<Inputs, AttentionError>;

    fn inputs(&self, device: &Device) -> Self::Inputs {
        device.seed(passes::SEED);
        let mut cache = NativeSparseCache::try_new(self.options.clone())?;
        let most = (AT_A_TIME / self.job.sizes.batch.max(1)).max(1);
        while cache.tokens() < self.tokens() {
            let count = most.min(self.tokens() - cache.tokens());
            let [query, key, value, gates] = self.some(count, device);
            cache.try_append(query, key, value, gates)?;
        }
        Ok(Inputs { cache: RefCell::new(cache), token: self.some(1, device) })
    }

    fn call(&self, inputs: &Self::Inputs) -> Result<Vec<Tensor<1>>, AttentionError> {
        let Inputs { cache, token } = inputs.as_ref().map_err(Clone::clone)?;
        let [query, key, value, gates] = token.clone();
        let output = cache.borrow_mut().try_append(query, key, value, gates)?;
        Ok(vec![output.out.flatten(0, 3)])
    }
}
