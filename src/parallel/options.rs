//! What the options of an operator hold for all members, on the device of each.

use std::ops::Range;

use burn::backend::DispatchTensor;
use burn::tensor::{Device, Tensor};

use super::exchange::{Links, narrow};
use crate::functional::inputs::additional_tokens;
use crate::{AttentionError, AttentionOptions, NeighborhoodOptions};

/// The axis of additional tokens that is their heads.
const HEADS: usize = 2;

/// Options whose tensors are still on the devices that they were given on.
pub(super) struct Shared {
    additional: Option<(Tensor<4>, Tensor<4>)>,
    bias: Option<DispatchTensor>,
}

/// Heads of queries, and those of keys and values that they read.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    pub query: Range<usize>,
    pub key: Range<usize>,
}

impl Shared {
    /// Takes the tensors out of options.
    pub fn of_dense(options: &mut AttentionOptions) -> Result<Self, AttentionError> {
        let additional = additional_tokens(std::mem::take(&mut options.additional))?;
        Ok(Self { additional, bias: None })
    }

    /// Takes the tensors out of options.
    pub fn of_windows<const N: usize>(
        options: &mut NeighborhoodOptions<N>,
    ) -> Result<Self, AttentionError> {
        let shared = Self::of_dense(&mut options.common)?;
        Ok(Self { bias: options.bias.take(), ..shared })
    }

    /// The shapes of the additional keys and values.
    pub fn additional_shapes(&self) -> Option<([usize; 4], [usize; 4])> {
        self.additional.as_ref().map(|(keys, values)| (keys.dims(), values.dims()))
    }

    /// The position bias, of whatever rank.
    pub fn bias(&self) -> Option<&DispatchTensor> {
        self.bias.as_ref()
    }

    /// Where they are.
    pub fn devices(&self) -> Vec<Device> {
        let additional = self.additional.iter().flat_map(|(a, b)| [a.device(), b.device()]);
        // The rank of the type does not matter to what is looked at.
        let bias = self.bias.iter().map(|bias| Tensor::<1>::from_dispatch(bias.clone()).device());
        additional.chain(bias).collect()
    }

    /// The additional keys and values for a member, of some heads or of all.
    pub fn additional(
        &self,
        links: &Links,
        member: usize,
        heads: Option<&Heads>,
    ) -> Option<(Tensor<4>, Tensor<4>)> {
        let on = |tensor: &Tensor<4>| {
            let tensor = tensor.clone();
            links.to(
                member,
                match heads {
                    Some(heads) => narrow(tensor, HEADS, heads.key.clone()),
                    None => tensor,
                },
            )
        };
        self.additional.as_ref().map(|(keys, values)| (on(keys), on(values)))
    }

    /// The options for a member, of some heads or of all.
    pub fn windows<const N: usize>(
        &self,
        options: &NeighborhoodOptions<N>,
        links: &Links,
        member: usize,
        heads: Option<&Heads>,
    ) -> NeighborhoodOptions<N> {
        let (keys, values) = self.additional(links, member, heads).unzip();
        let heads = heads.map(|heads| heads.query.clone());
        let bias = self.bias.clone().map(|bias| match N {
            1 => bias_on::<2>(bias, links, member, heads),
            2 => bias_on::<3>(bias, links, member, heads),
            _ => bias_on::<4>(bias, links, member, heads),
        });
        let options = options.clone().with_additional_kv(keys, values);
        NeighborhoodOptions { bias, ..options }
    }
}

/// A bias `[heads, ..]`, which has `R` axes, for a member.
fn bias_on<const R: usize>(
    bias: DispatchTensor,
    links: &Links,
    member: usize,
    heads: Option<Range<usize>>,
) -> DispatchTensor {
    let bias = Tensor::<R>::from_dispatch(bias);
    let bias = match heads {
        Some(heads) => narrow(bias, 0, heads),
        None => bias,
    };
    links.to(member, bias).into_dispatch()
}
