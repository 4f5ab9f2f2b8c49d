use burn::tensor::{DType, Device};
use burn_natten_kernels::BlockSparse;

use crate::backend::log_once;
use crate::options::AttentionOptions;
use crate::tier::{Request, selection};
use crate::{AttentionError, Capabilities, Context, Strategy, Tier};

/// A problem and how it is going to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSparsePlan {
    pub(crate) sparse: BlockSparse,
    pub(crate) tier: Tier,
    pub(crate) strategy: Strategy,
}

impl BlockSparsePlan {
    pub(crate) fn new(
        sparse: BlockSparse,
        dtype: DType,
        device: &Device,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        let device = Capabilities::of(device)
            .ok_or_else(|| AttentionError::UnsupportedBackend { device: format!("{device:?}") })?;
        let context = options.context.unwrap_or_else(Context::current);
        let request = Request { problem: &sparse.problem, dtype, device, context };
        let strategy = options.strategy;
        let first = |strategy| selection(&request, strategy).map(|found| found.forward.first());
        let is_too_large = sparse.needs_wide_indices() && !device.has_wide_indices;
        let portable = || match is_too_large {
            true => Err(refused(
                "a tensor has more than 2^31 elements and the device no 64-bit indices",
            )),
            false => first(Strategy::Portable),
        };
        let tier = match strategy {
            Strategy::Auto => portable().unwrap_or_else(|error| {
                log_once(format!("using tensor operations, because {error}"));
                Tier::Reference
            }),
            Strategy::Portable => portable()?,
            Strategy::Reference => Tier::Reference,
            _ => return Err(AttentionError::Strategy { strategy, reason: OTHERS.into() }),
        };
        Ok(Self { sparse, tier, strategy })
    }

    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        let problem = &self.sparse.problem;
        let has_pairs = problem.batch * problem.queries() * problem.keys() * self.sparse.entries;
        has_pairs == 0
    }
}

const OTHERS: &str = "block-sparse attention has Portable and Reference";

fn refused(reason: &str) -> AttentionError {
    AttentionError::Strategy { strategy: Strategy::Portable, reason: reason.to_string() }
}
