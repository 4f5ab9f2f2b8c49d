//! What members hand over, checked against each other.

use burn::tensor::{Device, Tensor};

use crate::AttentionError;
use crate::functional::inputs::{is_float, matches};
use crate::problem::{BATCH, HEAD_DIM, HEADS, SPACE, same};

/// The tensors of whom the others are compared with.
const FIRST: &str = "member 0";

/// Query, key and value of each member, which are shards of one tensor each.
pub(super) struct Members<const D: usize> {
    pub query: Vec<Tensor<D>>,
    pub key: Vec<Tensor<D>>,
    pub value: Vec<Tensor<D>>,
}

impl<const D: usize> Members<D> {
    /// Checks numbers, types, devices, and shapes but for the lengths of shards, which lie along an axis of the tensors that has
    /// this name.
    pub fn try_new(
        [query, key, value]: [Vec<Tensor<D>>; 3],
        (along, name): (usize, &'static str),
    ) -> Result<Self, AttentionError> {
        let members = query.len();
        if members == 0 {
            let bound = "at least 1".to_string();
            return Err(AttentionError::Parameter { parameter: "members", got: 0, bound });
        }
        for (parameter, got) in [("members of key", key.len()), ("members of value", value.len())] {
            if got != members {
                let bound = format!("{members} (members of query)");
                return Err(AttentionError::Parameter { parameter, got, bound });
            }
        }
        for (argument, tensors) in [("query", &query), ("key", &key), ("value", &value)] {
            for (number, tensor) in tensors.iter().enumerate() {
                let checked = is_shard((argument, tensor), (FIRST, &tensors[0]), (along, name))
                    .and_then(|()| matches((argument, tensor), ("query", &query[number])));
                checked.map_err(|error| error.of_member(number))?;
            }
        }
        for (number, (key, value)) in key.iter().zip(&value).enumerate() {
            same(&value.dims(), "value", &key.dims(), "key", along, name)
                .map_err(|error| error.of_member(number))?;
        }
        Ok(Self { query, key, value })
    }

    /// The device of each member.
    pub fn devices(&self) -> Vec<Device> {
        self.query.iter().map(Tensor::device).collect()
    }
}

/// How many tokens each member has along an axis.
pub(super) fn lengths<const D: usize>(tensors: &[Tensor<D>], along: usize) -> Vec<usize> {
    tensors.iter().map(|tensor| tensor.dims()[along]).collect()
}

/// What an axis of a tensor `[batch, *space, heads, head_dim]` means.
pub(super) fn name_of(axis: usize, rank: usize) -> &'static str {
    match axis {
        0 => BATCH,
        axis if axis + 2 == rank => HEADS,
        axis if axis + 1 == rank => HEAD_DIM,
        _ => SPACE,
    }
}

/// Fails unless a tensor has tokens, and differs from another in their number along an axis only.
fn is_shard<const D: usize>(
    (argument, tensor): (&'static str, &Tensor<D>),
    (other, like): (&'static str, &Tensor<D>),
    (along, name): (usize, &'static str),
) -> Result<(), AttentionError> {
    is_float(argument, tensor)?;
    if tensor.dtype() != like.dtype() {
        let (got, expected) = (tensor.dtype(), like.dtype());
        return Err(AttentionError::MixedDTypes { argument, got, expected, other });
    }
    let dims = tensor.dims();
    for axis in (0..D).filter(|axis| *axis != along) {
        same(&dims, argument, &like.dims(), other, axis, name_of(axis, D))?;
    }
    match dims[along] {
        0 => Err(AttentionError::Empty { argument, axis: along, name }),
        _ => Ok(()),
    }
}
