//! The relative position bias, as row kernels add it to scores; tiles have their own way in `tiled/bias.rs`.
//!
//! Whether there is one is known when a kernel is compiled ([`ComptimeOption`]), so that kernels without it have no
//! trace of it. The forward pass reads it as it is given. Backward it lies as `f32` behind the statistics of query rows, for
//! WGSL allows a kernel 8 buffers.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

/// `score` with the bias of row number `row` of a run.
#[cube]
pub(super) fn with_bias<B: Float>(
    score: f32,
    bias: ComptimeOption<RunBias<'_, B>>,
    #[comptime] row: usize,
) -> f32 {
    let biased: ComptimeOption<f32> = bias.map(|bias| score + bias.of(row));
    biased.unwrap_or(score)
}

/// The bias of a query and a run of keys, along which its places ascend, or of a key and a run of queries, along
/// which they descend.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct RunBias<'a, B: Float> {
    values: &'a [B],
    /// The place of the first row's.
    at: usize,
    /// Whether rows are queries.
    #[cube(comptime)]
    descends: bool,
}

#[cube]
impl<'a, B: Float> RunBias<'a, B> {
    /// Of a query and a run of keys, the first of which has its bias at `at`.
    pub fn of_keys(values: &'a [B], at: usize) -> RunBias<'a, B> {
        RunBias::<'a, B> { values, at, descends: false }
    }

    /// Of a key and a run of queries, the first of which has its bias at `at`.
    pub fn of_queries(values: &'a [B], at: usize) -> RunBias<'a, B> {
        RunBias::<'a, B> { values, at, descends: true }
    }

    /// That of row number `index`.
    pub fn of(&self, index: usize) -> f32 {
        f32::cast_from(self.values[self.place(index)])
    }

    /// The same from row number `index` on.
    pub fn from(&self, index: usize) -> RunBias<'a, B> {
        RunBias::<'a, B> {
            values: self.values,
            at: self.place(index),
            descends: comptime!(self.descends),
        }
    }

    fn place(&self, index: usize) -> usize {
        if comptime!(self.descends) { self.at - index } else { self.at + index }
    }
}
