use burn::tensor::{DType, Device};
use burn_natten_kernels::BlockSparse;

use crate::backend::direct_or_composed;
use crate::options::AttentionOptions;
use crate::tier::Request;
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
        let capabilities = Capabilities::of(device)
            .ok_or_else(|| AttentionError::UnsupportedBackend { device: format!("{device:?}") })?;
        Self::on(capabilities, sparse, dtype, options)
    }

    /// On a device of which no more is known.
    pub(crate) fn on(
        device: Capabilities,
        sparse: BlockSparse,
        dtype: DType,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        let context = options.context.unwrap_or_else(Context::current);
        let request = Request { problem: &sparse.problem, dtype, device, context };
        let strategy = options.strategy;
        let tier = direct_or_composed(&request, strategy, sparse.list_elements(), REFUSAL)?;
        Ok(Self { sparse, tier, strategy })
    }

    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        let problem = &self.sparse.problem;
        let has_pairs = problem.batch * problem.queries() * problem.keys() * self.sparse.entries;
        has_pairs == 0
    }
}

const REFUSAL: &str = "block-sparse attention has Portable and Reference";
