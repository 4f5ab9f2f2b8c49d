//! Products on cooperative matrices, between shared memory and fragments.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, Operand};

/// Sums of a plane's rows, in the order of their columns.
pub(in super::super) type Sums = Sequence<Matrix<f32>>;

/// Zeros, of rows that are `dim` elements long.
#[cube]
pub(in super::super) fn no_sums(#[comptime] dim: usize, #[comptime] blueprint: Blueprint) -> Sums {
    let [m, n, k] = comptime!(blueprint.shape());
    let mut sums = Sequence::new();
    #[unroll]
    for _ in 0..comptime!(dim / n) {
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
pub(in super::super) fn score<F: Float, N: Size>(
    rows: &[Vector<F, N>],
    columns: &[Vector<F, N>],
    scores: &mut [f32],
    plane: usize,
    #[comptime] operand: Operand,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
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
                &rows[from..rows.len()],
                stride,
            );
            let from = comptime!(block * n * pitch + along);
            let right = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::B,
                m,
                n,
                k,
                MatrixLayout::ColMajor,
                &columns[from..columns.len()],
                stride,
            );
            cmma::execute(&left, &right, &sum, &sum);
        }
        let to = plane * comptime!(m * score_pitch) + comptime!(block * n);
        let end = scores.len();
        cmma::store(
            &mut scores[to..end],
            &sum,
            comptime!(score_pitch as u32),
            MatrixLayout::RowMajor,
        );
    }
}

/// `sums += weights columns`, of the plane's rows.
#[cube]
pub(in super::super) fn accumulate<F: Float, N: Size>(
    weights: &[F],
    columns: &[Vector<F, N>],
    sums: &mut Sums,
    plane: usize,
    #[comptime] operand: Operand,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
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
            &weights[from..weights.len()],
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
                &columns[from..columns.len()],
                comptime!((operand.pitch * operand.vector) as u32),
            );
            let sum = sums.index(block);
            cmma::execute(&left, &right, sum, sum);
        }
    }
}

/// Puts as many columns of the sums, of rows that are `dim` elements long, as a step has where scores are.
#[cube]
pub(super) fn show(
    scores: &mut [f32],
    sums: &Sums,
    plane: usize,
    #[comptime] part: usize,
    #[comptime] dim: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, _] = comptime!(blueprint.shape());
    let pitch = comptime!(blueprint.score_pitch());
    let blocks = comptime!(blueprint.columns() / n);
    #[unroll]
    for block in 0..blocks {
        if comptime!(part * blocks + block < dim / n) {
            let to = plane * comptime!(m * pitch) + comptime!(block * n);
            let end = scores.len();
            cmma::store(
                &mut scores[to..end],
                sums.index(comptime!(part * blocks + block)),
                comptime!(pitch as u32),
                MatrixLayout::RowMajor,
            );
        }
    }
    sync_cube();
}
