//! The parts of a step, each on its own.

use std::time::Duration;

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::models::nat::{Nat, NatBlock};
use burn_natten::na2d;
use burn_natten::nn::{gelu, linear};

use crate::timed;

/// A part of the model that a step passes through so many times.
pub struct Part<'a> {
    pub name: String,
    pub times: u32,
    /// Of its input.
    shape: [usize; 4],
    /// Whether the input is a picture, whose gradient nobody asks for.
    is_picture: bool,
    forward: Box<Forward<'a>>,
}

type Forward<'a> = dyn Fn(Tensor<4>) -> Tensor<4> + 'a;

/// The parts of a model.
pub fn of<'a>(model: &'a Nat, shape: [usize; 4], device: &Device) -> Vec<Part<'a>> {
    let mut parts = vec![Part {
        name: "pictures to tokens".to_string(),
        times: 1,
        shape,
        is_picture: true,
        forward: Box::new(|pictures| model.patch_embed.forward(pictures)),
    }];
    let [batch, channels, height, width] = shape;
    let picture = Tensor::<4>::random([1, channels, height, width], Distribution::Default, device);
    let [_, height, width, dim] = model.patch_embed.forward(picture).dims();
    let mut map = [batch, height, width, dim];
    for (number, level) in model.levels.iter().enumerate() {
        let [_, height, width, dim] = map;
        let at = |name: &str| format!("level {number}, {height} x {width} x {dim}: {name}");
        let mut add = |name: &str, times, shape, forward: Box<Forward<'a>>| {
            parts.push(Part { name: at(name), times, shape, is_picture: false, forward });
        };
        let (Some(block), count) = (level.blocks.first(), level.blocks.len() as u32) else {
            continue;
        };
        add("norm", 2 * count, map, Box::new(|tokens| block.norm1.forward(tokens)));
        add("query, key, value", count, map, Box::new(|tokens| linear(&block.attn.qkv, tokens)));
        for (dilation, (times, block)) in by_dilation(&level.blocks) {
            let attend = move |tokens: Tensor<4>| attention(block, tokens);
            let name = format!("attention, dilation {dilation}");
            add(&name, times, padded(block, map), Box::new(attend));
        }
        add("projection", count, map, Box::new(|tokens| linear(&block.attn.proj, tokens)));
        add("MLP", count, map, Box::new(|tokens| block.mlp.forward(tokens)));
        add("GELU of such a map", 0, map, Box::new(gelu));
        if let Some(downsample) = &level.downsample {
            add("to the next level", 1, map, Box::new(|tokens| downsample.forward(tokens)));
            map = [map[0], height.div_ceil(2), width.div_ceil(2), 2 * dim];
        }
    }
    parts
}

/// How many blocks have which dilation, and the first of them.
fn by_dilation(blocks: &[NatBlock]) -> Vec<(usize, (u32, &NatBlock))> {
    let mut known: Vec<(usize, (u32, &NatBlock))> = vec![];
    for block in blocks {
        match known.iter_mut().find(|(dilation, _)| *dilation == block.attn.dilation) {
            Some((_, (times, _))) => *times += 1,
            None => known.push((block.attn.dilation, (1, block))),
        }
    }
    known
}

/// The sides of a map at least as long as a window, as blocks pad it.
fn padded(block: &NatBlock, [batch, height, width, dim]: [usize; 4]) -> [usize; 4] {
    let least = block.attn.kernel_size * block.attn.dilation;
    [batch, height.max(least), width.max(least), dim]
}

/// The operator alone: tokens are query, key and value.
fn attention(block: &NatBlock, tokens: Tensor<4>) -> Tensor<4> {
    let ([batch, height, width, dim], heads) = (tokens.dims(), block.attn.num_heads);
    let heads = tokens.reshape([batch, height, width, heads, dim / heads]);
    na2d(heads.clone(), heads.clone(), heads, block.attn.options()).flatten(3, 4)
}

/// The median of forward and backward pass.
pub fn time(part: &Part<'_>, device: &Device) -> Result<Duration, String> {
    let input = Tensor::<4>::random(part.shape, Distribution::Default, device);
    let mut times = vec![];
    for _ in 0..8 {
        let input = match part.is_picture {
            true => input.clone(),
            false => input.clone().require_grad(),
        };
        // From a gradient of ones.
        times.push(timed(device, || drop((part.forward)(input).backward()))?.1);
    }
    // The first ones compile.
    let mut times = times.split_off(3);
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
