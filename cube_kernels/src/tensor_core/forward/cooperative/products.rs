//! Products on cooperative matrices, between shared memory and fragments.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::{Sums, Tiles};
use crate::tensor_core::blueprint::{Blueprint, Operand};

#[cube]
pub(super) fn no_sums(#[comptime] blueprint: Blueprint) -> Sums {
    let [m, n, k] = comptime!(blueprint.shape());
    let mut sums = Sequence::new();
    #[unroll]
    for _ in 0..comptime!(blueprint.dim_v() / n) {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            m,
            n,
            k,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    sums
}

/// `scores = rows columns^T`, of the plane's rows.
#[cube]
pub(super) fn score<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    plane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
    let operand: comptime_type!(Operand) = comptime!(blueprint.first());
    let pitch = comptime!(operand.pitch);
    let stride = comptime!((operand.pitch * operand.vector) as u32);
    let score_pitch = comptime!(blueprint.score_pitch());
    #[unroll]
    for block in 0..comptime!(blueprint.columns() / n) {
        let sum = Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            m,
            n,
            k,
            MatrixLayout::Undefined,
            0.0f32,
        );
        #[unroll]
        for piece in 0..comptime!(operand.dim / k) {
            let along = comptime!(piece * k / operand.vector);
            let from = plane * comptime!(m * pitch) + along;
            let left = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::A,
                m,
                n,
                k,
                MatrixLayout::RowMajor,
                &tiles.query[from..tiles.query.len()],
                stride,
            );
            let from = comptime!(block * n * pitch + along);
            let right = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::B,
                m,
                n,
                k,
                MatrixLayout::ColMajor,
                &tiles.key[from..tiles.key.len()],
                stride,
            );
            cmma::execute(&left, &right, &sum, &sum);
        }
        let to = plane * comptime!(m * score_pitch) + comptime!(block * n);
        let end = tiles.scores.len();
        cmma::store(
            &mut tiles.scores[to..end],
            &sum,
            comptime!(score_pitch as u32),
            MatrixLayout::RowMajor,
        );
    }
}

/// `sums += weights values`, of the plane's rows.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &mut Sums,
    plane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
    let operand: comptime_type!(Operand) = comptime!(blueprint.second());
    let pitch = comptime!(operand.pitch);
    let weight_pitch = comptime!(blueprint.weight_pitch());
    #[unroll]
    for piece in 0..comptime!(blueprint.columns() / k) {
        let from = plane * comptime!(m * weight_pitch) + comptime!(piece * k);
        let left = Matrix::<F>::from_slice(
            MatrixIdent::A,
            m,
            n,
            k,
            MatrixLayout::RowMajor,
            &tiles.weights[from..tiles.weights.len()],
            comptime!(weight_pitch as u32),
        );
        #[unroll]
        for block in 0..comptime!(operand.dim / n) {
            let from = comptime!(piece * k * pitch + block * n / operand.vector);
            let right = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::B,
                m,
                n,
                k,
                MatrixLayout::RowMajor,
                &tiles.value[from..tiles.value.len()],
                comptime!((operand.pitch * operand.vector) as u32),
            );
            let sum = sums.index(block);
            cmma::execute(&left, &right, sum, sum);
        }
    }
}

/// Puts as many columns of the sums as a step has where scores are.
#[cube]
pub(super) fn show<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    plane: usize,
    #[comptime] part: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, _] = comptime!(blueprint.shape());
    let pitch = comptime!(blueprint.score_pitch());
    let blocks = comptime!(blueprint.columns() / n);
    #[unroll]
    for block in 0..blocks {
        if comptime!(part * blocks + block < blueprint.dim_v() / n) {
            let to = plane * comptime!(m * pitch) + comptime!(block * n);
            let end = tiles.scores.len();
            cmma::store(
                &mut tiles.scores[to..end],
                sums.index(comptime!(part * blocks + block)),
                comptime!(pitch as u32),
                MatrixLayout::RowMajor,
            );
        }
    }
    sync_cube();
}
