use burn::tensor::{DType, Device};
use burn_natten_kernels::BlockSparse;
#[cfg(feature = "cuda")]
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm90;

use crate::backend::{direct_or_composed, log_once};
use crate::options::AttentionOptions;
use crate::tier::{Ladder, Request, hopper_for};
use crate::{AttentionError, Capabilities, Context, Strategy, Tier};

/// A problem and how it is going to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSparsePlan {
    pub(crate) sparse: BlockSparse,
    /// Tiers of both passes. One alone where it was asked for by name.
    pub(crate) ladder: Ladder,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "native kernels know two types"))]
    dtype: DType,
    #[cfg_attr(not(feature = "cube"), allow(dead_code, reason = "launches can fail"))]
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
        let (plan, note) = Self::on(capabilities, sparse, dtype, options)?;
        note.into_iter().for_each(log_once);
        Ok(plan)
    }

    /// On a device of which no more is known, with what is worth to be logged of it.
    pub(crate) fn on(
        device: Capabilities,
        sparse: BlockSparse,
        dtype: DType,
        options: &AttentionOptions,
    ) -> Result<(Self, Option<String>), AttentionError> {
        let context = options.context.unwrap_or_else(Context::current);
        let request = Request { problem: &sparse.problem, dtype, device, context };
        let strategy = options.strategy;
        let obstacle = || hopper_for(&request, || sm90::unsupported_blocks(&sparse));
        let below =
            |strategy| direct_or_composed(&request, strategy, sparse.list_elements(), REFUSAL);
        let mut note = None;
        let ladder = match strategy {
            Strategy::Hopper => match obstacle() {
                None => Tier::Hopper.into(),
                Some(reason) => return Err(AttentionError::Strategy { strategy, reason }),
            },
            Strategy::Auto => {
                let (obstacle, direct) = (obstacle(), below(strategy)?);
                // Of such a device and such tensors one would expect it.
                let is_news = device.has_hopper && request.is_half();
                let first = obstacle.is_none().then_some(Tier::Hopper);
                note = obstacle
                    .filter(|_| is_news)
                    .map(|reason| format!("using {}, because {reason}", direct.kernels()));
                first.into_iter().chain([direct, Tier::Reference]).collect()
            }
            _ => below(strategy)?.into(),
        };
        Ok((Self { sparse, ladder, dtype, strategy }, note))
    }

    /// What native kernels multiply.
    #[cfg(feature = "cuda")]
    pub(crate) fn element(&self) -> Element {
        crate::backend::element(self.dtype)
    }

    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        let problem = &self.sparse.problem;
        let has_pairs = problem.batch * problem.queries() * problem.keys() * self.sparse.entries;
        has_pairs == 0
    }
}

const REFUSAL: &str = "block-sparse attention has Hopper, Portable and Reference";
