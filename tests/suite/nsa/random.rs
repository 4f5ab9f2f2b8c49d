//! Random problems, small, with any options.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::NativeSparseAttentionOptions;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::run::tensor;

/// Sizes of a problem of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    pub heads_kv: usize,
    pub dim: usize,
    pub dim_v: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { batch: 1, tokens: 61, heads: 4, heads_kv: 2, dim: 4, dim_v: 3 }
    }
}

/// Query, key, value and gates.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub gates: Vec<f64>,
}

impl Sizes {
    pub fn shapes(&self) -> [[usize; 4]; 4] {
        let Self { batch, tokens, heads, heads_kv, dim, dim_v } = *self;
        [
            [batch, tokens, heads, dim],
            [batch, tokens, heads_kv, dim],
            [batch, tokens, heads_kv, dim_v],
            [batch, tokens, heads, 3],
        ]
    }

    pub fn inputs(&self, seed: u64) -> Inputs {
        let mut random = StdRng::seed_from_u64(seed);
        let [query, key, value, gates] = self.shapes().map(|shape| {
            let count = shape.iter().product();
            (0..count).map(|_| random.random_range(-1.5..1.5)).collect::<Vec<f64>>()
        });
        Inputs { query, key, value, gates }
    }

    /// Query, key, value and gates on a device.
    pub fn tensors(&self, inputs: &Inputs, device: &Device, dtype: DType) -> [Tensor<4>; 4] {
        let [q, k, v, g] = self.shapes();
        [(&inputs.query, q), (&inputs.key, k), (&inputs.value, v), (&inputs.gates, g)]
            .map(|(values, shape)| tensor(values, shape, device, dtype))
    }
}

/// Small blocks.
pub fn options() -> NativeSparseAttentionOptions {
    NativeSparseAttentionOptions::new()
        .with_cmp_block(8)
        .with_cmp_stride(4)
        .with_slc_block(8)
        .with_num_selected(4)
        .with_window(9)
}

/// Options that differ in what they use.
pub fn many_options() -> Vec<(&'static str, NativeSparseAttentionOptions)> {
    let tiles = || options().with_query_tile(16).with_num_selected(6);
    vec![
        ("a list each", options()),
        ("tiles of two blocks", tiles()),
        ("tiles in a block", options().with_query_tile(4)),
        ("thinned", options().with_cmp_top(2).with_cmp_group(2)),
        ("thinned tiles", tiles().with_cmp_top(4).with_cmp_group(2)),
        ("no window", options().with_window(0)),
        ("a window of one", options().with_window(1)),
        ("a window over all", options().with_window(500)),
        ("blocks side by side", options().with_cmp_stride(8)),
        ("dense blocks", options().with_cmp_block(2).with_cmp_stride(1)),
        ("long compressed blocks", options().with_cmp_block(16).with_cmp_stride(4)),
    ]
}
