//! Sums over all queries: chunks of them, one a unit, and a kernel that adds up the chunks in order.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::plan::Launch;
use crate::cube::{buffer, narrow_all};
use crate::{KernelError, Problem};

/// Units to aim for: enough to fill a large GPU.
const TARGET_UNITS: usize = 1 << 17;
/// Fewest parts worth a chunk of their own.
const MIN_CHUNK: usize = 8;

/// How parts of a sum are shared among units: unit `u` owns result `u % results` and chunk `u / results`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Chunks {
    pub units: usize,
    pub results: usize,
    /// Parts of a chunk.
    pub chunk: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn reduce_kernel<F: Float, N: Size>(
    partial: &[Vector<f32, N>],
    results: &mut [Vector<F, N>],
    count: usize,
    chunks: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for chunk in 0..chunks {
        sum += partial[chunk * count + ABSOLUTE_POS];
    }
    results[ABSOLUTE_POS] = narrow_all(sum);
}

/// How the sums of tiles are shared among units.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Tiles {
    chunks: Chunks,
    /// Entries of a head, and heads.
    entries: usize,
    heads: usize,
    /// Of a head of a sample, and of all samples.
    tiles: usize,
    parts: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn tiles_kernel(sums: &[f32], partial: &mut [f32], tiles: Tiles) {
    if ABSOLUTE_POS >= tiles.chunks.units {
        terminate!();
    }
    let result = ABSOLUTE_POS % tiles.chunks.results;
    let (head, entry) = (result / tiles.entries, result % tiles.entries);
    let first = ABSOLUTE_POS / tiles.chunks.results * tiles.chunks.chunk;
    let mut sum = 0.0f32;
    for part in first..min(first + tiles.chunks.chunk, tiles.parts) {
        let of_head = part / tiles.tiles * tiles.heads + head;
        sum += sums[(of_head * tiles.tiles + part % tiles.tiles) * tiles.entries + entry];
    }
    partial[ABSOLUTE_POS] = sum;
}

/// Adds up the sums `[batch, heads, tiles, entries]` of a bias' gradient over samples and tiles, in a fixed order.
///
/// # Errors
///
/// If the device lacks the type.
pub(crate) fn reduce_tiles(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    sums: &Handle,
    to: &Handle,
    tiles: usize,
) -> Result<(), KernelError> {
    let by = Launch::new(client, problem, dtype)?;
    let (entries, heads, parts) = (problem.bias_entries(), problem.heads, problem.batch * tiles);
    let results = heads * entries;
    let (argument, chunks) = chunks(results, parts);
    let partial = workspace(&by, results * chunks);
    let (cube_count, cube_dim) = by.cubes(results * chunks);
    // SAFETY: the workspaces were made for these sizes.
    unsafe {
        tiles_kernel::launch_unchecked(
            client,
            cube_count,
            cube_dim,
            AddressType::from_len_signed(results * parts).max(by.address_type),
            buffer(sums),
            buffer(&partial),
            TilesLaunch::new(argument, entries, heads, tiles, parts),
        );
    }
    launch(&by, &partial, to, [results, chunks], 1);
    Ok(())
}

/// Launch argument for so many results of so many parts each, and the number of chunks, none of which is empty.
pub(super) fn chunks(results: usize, parts: usize) -> (ChunksLaunch, usize) {
    let (chunks, chunk) = split(results, parts);
    (ChunksLaunch::new(results * chunks, results, chunk), chunks)
}

fn split(results: usize, parts: usize) -> (usize, usize) {
    let wanted = TARGET_UNITS.div_ceil(results);
    let chunk = parts.div_ceil(wanted).max(MIN_CHUNK);
    (parts.div_ceil(chunk), chunk)
}

/// Memory for this many sums.
pub(super) fn workspace(launch: &Launch<'_>, sums: usize) -> Handle {
    launch.client.empty((sums * size_of::<f32>()).max(1))
}

/// Adds up `[results, chunks]` vectors of `vector` sums.
pub(super) fn launch(
    launch: &Launch<'_>,
    partial: &Handle,
    to: &Handle,
    [results, chunks]: [usize; 2],
    vector: usize,
) {
    let (cube_count, cube_dim) = launch.cubes(results);
    // SAFETY: the workspace was made for, and the result checked against, these sizes.
    unsafe {
        reduce_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            buffer(partial),
            buffer(to),
            results,
            chunks,
            launch.dtype,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_parts_and_none_is_empty() {
        for parts in [1, 7, 8, 9, 1000, 200_704] {
            for results in [1, 338, 1 << 18] {
                let (chunks, chunk) = split(results, parts);
                let case = format!("{results} results of {parts} parts");
                assert!(chunks * chunk >= parts, "{case}");
                assert!((chunks - 1) * chunk < parts, "{case}");
            }
        }
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn sums_of_tiles_are_added_up_by_head_and_entry() {
        use cubecl::ir::FloatKind;

        let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
        let problem = Problem::new([crate::Axis::neighborhood(9, 3)], 2, 8).with_batch(3);
        let problem = problem.with_bias(true);
        // 111 parts of ten results, of whole numbers that no sum rounds.
        let (heads, tiles, entries) = (2, 37, 5);
        let sums: Vec<f32> =
            (0..3 * heads * tiles * entries).map(|i| (i * i % 97) as f32).collect();
        let upload = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            client.create_from_slice(&bytes)
        };
        let (from, to) = (upload(&sums), upload(&[f32::NAN; 10]));
        let f32 = ElemType::Float(FloatKind::F32);
        reduce_tiles(&client, &problem, f32, &from, &to, tiles).expect("launched");
        let bytes = client.read_one(to).expect("the kernels ran");
        let (words, _) = bytes.as_chunks::<4>();
        let actual: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let mut expected = vec![0.0; heads * entries];
        for (place, sum) in sums.iter().enumerate() {
            let head = place / (tiles * entries) % heads;
            expected[head * entries + place % entries] += sum;
        }
        assert_eq!(actual, expected);
    }
}
