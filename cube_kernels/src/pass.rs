/// What a kernel computes. Its tiles are made of rows, which it keeps; what it sweeps over are columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Output and logsumexp: rows are queries, columns are keys.
    Forward,
    /// The gradient of the queries: rows are queries, columns are keys.
    Queries,
    /// The gradients of keys and values: rows are keys, columns are queries.
    Keys,
}

impl Pass {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Queries => "queries",
            Self::Keys => "keys",
        }
    }
}
