//! Distances between eight rows and a tile of columns, by which gradients of scores are summed: what the gradient of a position
//! bias takes of shared memory.

use super::blueprint::{Blueprint, Pass};
use crate::{Axis, MAX_RANK, Problem};

/// Rows whose gradients of scores are summed at once: those of a fragment's half.
pub(super) const EIGHT: usize = 8;

/// A power of two that room for sums is a multiple of, so that windows of various sizes share a kernel.
const ROOM: usize = 64;

/// Most sums of all cubes: 1 GiB.
const MOST_SUMS: usize = 1 << 28;

/// The distances between eight rows, which are a box, and a tile of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Near {
    /// The box of rows.
    pub rows: [usize; MAX_RANK],
    /// The tile of columns.
    pub columns: [usize; MAX_RANK],
}

impl Near {
    /// Distances along each axis.
    pub fn lengths(&self) -> [usize; MAX_RANK] {
        std::array::from_fn(|axis| self.rows[axis] + self.columns[axis] - 1)
    }

    /// Distances in all.
    pub fn count(&self) -> usize {
        self.lengths().iter().product()
    }

    /// Where positions stand among the distances.
    fn place(&self, [z, y, x]: [usize; MAX_RANK]) -> usize {
        let [_, along_y, along_x] = self.lengths();
        (z * along_y + y) * along_x + x
    }

    /// Where the first row's distance from column `column` stands, if the last row's from the first one is the first.
    pub fn column(&self, column: usize) -> usize {
        let [_, y, x] = self.columns;
        self.place([column / (x * y), column / x % y, column % x])
    }

    /// How far the first row's distances stand behind the last row's.
    pub fn last_row(&self) -> usize {
        self.place(self.rows.map(|length| length - 1))
    }
}

impl Blueprint {
    /// The distances between eight rows of a plane and a tile of columns.
    pub(super) fn near(&self) -> Near {
        let [_, y, x] = self.row_tile();
        let along_x = x.min(EIGHT);
        let along_y = y.min(EIGHT / along_x);
        let rows = [EIGHT / (along_x * along_y), along_y, along_x];
        Near { rows, columns: self.column_tile() }
    }

    /// Numbers of a plane: gradients of scores by distance, row by row, and sums of them.
    pub(super) fn slope_words(&self) -> [usize; 2] {
        [EIGHT * self.near().count(), self.bias_sums]
    }

    /// The same of all planes, where the kernel sums the gradient of a bias.
    pub(super) fn sums_words(&self) -> usize {
        match self.bias_sums {
            0 => 0,
            _ => self.planes * self.slope_words().iter().sum::<usize>(),
        }
    }

    /// Tiles of queries of a head of a sample, with those that some dilation groups do not have.
    pub(super) fn query_tiles(&self, problem: &Problem) -> usize {
        let along = |(axis, tile): (&Axis, usize)| {
            axis.dilation * axis.queries.div_ceil(axis.dilation).div_ceil(tile)
        };
        problem.axes.iter().zip(self.q_tile).map(along).product()
    }

    /// Sums of the gradient of the bias that all cubes leave.
    pub(super) fn all_sums(&self, problem: &Problem) -> usize {
        let cubes = problem.batch * problem.heads * self.query_tiles(problem);
        cubes.saturating_mul(problem.bias_entries())
    }

    /// The same kernel with sums of the gradient of a problem's bias; `None` if it can have none.
    pub(super) fn with_bias_sums(self, problem: &Problem) -> Option<Self> {
        let is_able = self.has_bias && self.pass == Pass::Queries && self.instruction.is_mma();
        let is_small = self.all_sums(problem) <= MOST_SUMS;
        let bias_sums = problem.bias_entries().next_multiple_of(ROOM);
        (is_able && is_small).then_some(Self { bias_sums, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_core::{Capability, backward_candidates};

    #[test]
    fn distances_are_those_of_rows_and_columns() {
        let axis = Axis::neighborhood(20, 7);
        let capability = Capability::cuda(80).expect("matrix units");
        for rank in 1..=MAX_RANK {
            let problem = Problem::new(&[axis; MAX_RANK][..rank], 2, 32).with_bias(true);
            for blueprint in backward_candidates(&problem, &capability, 8, Pass::Queries) {
                let near = blueprint.near();
                let [_, y, x] = near.rows;
                assert_eq!(near.rows.iter().product::<usize>(), EIGHT);
                for row in 0..EIGHT {
                    // Eight rows that follow each other are a box.
                    let at = |row: usize, [_, y, x]: [usize; MAX_RANK]| {
                        [row / (x * y), row / x % y, row % x]
                    };
                    let box_row = [row / (x * y), row / x % y, row % x];
                    assert_eq!(box_row, at(row, blueprint.row_tile()), "{blueprint}");
                    let back = near.place(box_row);
                    for column in 0..blueprint.columns() {
                        let to = at(column, near.columns);
                        let distance: [usize; MAX_RANK] = std::array::from_fn(|axis| {
                            to[axis] + near.rows[axis] - 1 - box_row[axis]
                        });
                        let place = near.last_row() + near.column(column) - back;
                        assert_eq!(place, near.place(distance), "{blueprint}");
                    }
                }
            }
        }
    }
}
