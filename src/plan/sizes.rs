use burn_natten_kernels::Problem;

use crate::problem::{self, Shapes, Windows};
use crate::{AttentionError, CausalAlignment};

/// The sizes of the tensors of an attention, without their spatial axes.
///
/// ```rust
/// use burn_natten::plan::Sizes;
///
/// let sizes = Sizes { batch: 4, heads: 16, heads_kv: 4, ..Sizes::new(128) };
/// let problem = sizes.dense(1024, 4096, false, None)?;
/// assert_eq!(problem.pairs(), 1024 * 4096);
/// # Ok::<(), burn_natten::AttentionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Number of samples.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub heads_kv: usize,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value or output vector.
    pub head_dim_v: usize,
    /// Number of additional keys and values.
    pub additional: usize,
    /// Whether windows have a relative position bias; dense attention has none.
    pub has_bias: bool,
}

impl Sizes {
    /// One sample and one head, of vectors of this length; no additional tokens and no bias.
    pub const fn new(head_dim: usize) -> Self {
        let head_dim_v = head_dim;
        Self {
            batch: 1,
            heads: 1,
            heads_kv: 1,
            head_dim,
            head_dim_v,
            additional: 0,
            has_bias: false,
        }
    }

    /// The problem of [`na1d`](crate::na1d), [`na2d`](crate::na2d) or [`na3d`](crate::na3d) on
    /// tensors of these sizes, with the spatial axes `space`. The scale is `head_dim^-0.5` without
    /// another one.
    ///
    /// # Errors
    ///
    /// Those of the operator: [`AttentionError`] names what does not fit. [`AttentionError::Rank`]
    /// if there are not 1 to 3 axes, or not one entry of each parameter for each axis.
    pub fn neighborhood(
        &self,
        space: &[usize],
        windows: Windows<'_>,
        scale: Option<f64>,
    ) -> Result<Problem, AttentionError> {
        if !(1..=3).contains(&space.len()) {
            let (got, expected) = (space.len(), space.len().clamp(1, 3));
            return Err(AttentionError::Rank { argument: "space", got, expected });
        }
        for (argument, got) in [
            ("kernel_size", windows.kernel_size.len()),
            ("stride", windows.stride.len()),
            ("dilation", windows.dilation.len()),
            ("is_causal", windows.is_causal.len()),
        ] {
            if got != space.len() {
                return Err(AttentionError::Rank { argument, got, expected: space.len() });
            }
        }
        let entries =
            windows.kernel_size.iter().map(|size| size.saturating_mul(2).saturating_sub(1));
        let bias: Vec<usize> = std::iter::once(self.heads).chain(entries).collect();
        self.problem(space, space, |shapes| {
            let bias = self.has_bias.then_some(bias.as_slice());
            problem::neighborhood(Shapes { bias, ..shapes }, windows, scale)
        })
    }

    /// The problem of [`attention`](crate::attention) on tensors of these sizes, causal ones aligned at the end. The scale is
    /// `head_dim^-0.5` without another one.
    ///
    /// # Errors
    ///
    /// Those of the operator: [`AttentionError`] names what does not fit.
    pub fn dense(
        &self,
        queries: usize,
        keys: usize,
        is_causal: bool,
        scale: Option<f64>,
    ) -> Result<Problem, AttentionError> {
        self.problem(&[queries], &[keys], |shapes| {
            problem::dense(shapes, is_causal.then_some(CausalAlignment::End), scale)
        })
    }

    fn problem(
        &self,
        queries: &[usize],
        keys: &[usize],
        check: impl FnOnce(Shapes<'_>) -> Result<Problem, AttentionError>,
    ) -> Result<Problem, AttentionError> {
        let shape = |space: &[usize], heads, dim| [&[self.batch], space, &[heads, dim]].concat();
        let (heads_kv, additional) = (self.heads_kv, self.additional);
        let tokens = |dim| [self.batch, additional, heads_kv, dim];
        check(Shapes {
            query: &shape(queries, self.heads, self.head_dim),
            key: &shape(keys, heads_kv, self.head_dim),
            value: &shape(keys, heads_kv, self.head_dim_v),
            additional: (additional > 0).then(|| (tokens(self.head_dim), tokens(self.head_dim_v))),
            bias: None,
        })
    }
}
