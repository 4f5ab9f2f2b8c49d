use std::fmt;

/// What members send each other, where tokens of windows are split along an axis: 0 is the first axis behind the batch.
///
/// ```text
///               each member computes                     each member sends
/// Heads         all tokens, of some heads                its tokens of the heads of others: query, key, value, output
/// Halo          its own tokens, of all heads             the keys and values that windows of others reach
/// ```
///
/// Both are exact. Heads are balanced whatever the windows are, but have to be as many as members, or a multiple of it (those of keys,
/// where queries share them). A halo grows with the window, not with the tokens. [`estimates`](super::estimates) compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Split {
    /// By heads, which members get by exchanging all tokens.
    Heads {
        /// The axis along which tokens lie in shards.
        axis: usize,
    },
    /// By tokens, of which members exchange those at their ends.
    Halo {
        /// The axis along which tokens lie in shards.
        axis: usize,
    },
}

impl Split {
    /// The axis along which tokens lie in shards.
    pub fn axis(&self) -> usize {
        match *self {
            Self::Heads { axis } | Self::Halo { axis } => axis,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Heads { axis } => format!("heads, tokens along axis {axis}"),
            Self::Halo { axis } => format!("halo along axis {axis}"),
        };
        f.pad(&text)
    }
}
