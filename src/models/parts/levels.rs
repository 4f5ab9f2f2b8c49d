//! What models of several resolutions do alike, whatever leads from one to the next.

use burn::tensor::{Device, Tensor};

use super::{BlockConfig, NatBlock, drop_path_rates};
use crate::models::{ConfigError, Features};
use crate::nn::LayerNorm;

/// The blocks of each level. Drop path grows to `rate` over all of them.
#[track_caller]
pub(in crate::models) fn blocks_of_levels(
    depths: &[usize],
    rate: f64,
    config: impl Fn(usize, usize) -> BlockConfig,
    device: &Device,
) -> Vec<Vec<NatBlock>> {
    let mut rates = drop_path_rates(rate, depths.iter().sum()).into_iter();
    let mut blocks = |(level, depth): (usize, &usize)| {
        let with_rates = (0..*depth).zip(&mut rates);
        let new = |(block, drop_path)| {
            NatBlock::new(&BlockConfig { drop_path, ..config(level, block) }, device)
        };
        with_rates.map(new).collect()
    };
    depths.iter().enumerate().map(&mut blocks).collect()
}

/// Whether every block of every level can be made.
pub(in crate::models) fn check_blocks(
    depths: &[usize],
    config: impl Fn(usize, usize) -> BlockConfig,
) -> Result<(), ConfigError> {
    let mut blocks = depths
        .iter()
        .enumerate()
        .flat_map(|(level, depth)| (0..*depth).map(move |block| (level, block)));
    blocks.try_for_each(|(level, block)| config(level, block).check())
}

/// One way through a level: its blocks, or what leads to the next one.
type Way<'a, L> = &'a dyn Fn(&L, Tensor<4>) -> Tensor<4>;

/// The features of all levels, from the tokens of the first.
#[track_caller]
pub(in crate::models) fn features<L>(
    tokens: Tensor<4>,
    levels: &[L],
    [blocks, downsample]: [Way<'_, L>; 2],
    norm: &LayerNorm,
) -> Features {
    let mut state = tokens;
    let through = |level| {
        let seen = blocks(level, state.clone());
        state = downsample(level, seen.clone());
        seen
    };
    let levels = levels.iter().map(through).collect();
    Features { levels, output: norm.forward(state) }
}
