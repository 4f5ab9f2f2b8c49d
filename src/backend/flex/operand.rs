//! Tensors in the two forms that the inner loops read.
//!
//! *Rows* are the tensor as it is, heads last: the vectors that a weighted sum adds up. A *panel*
//! is its transpose, `[batch, heads, row, head_dim, position]`: one load takes the same component
//! of neighboring tokens. Along the fastest axis the panel lists dilation groups one after
//! another, so that the keys of a window are always contiguous.

use std::borrow::Cow;

use burn_natten_kernels::{MAX_RANK, window::group_length};
use rayon::prelude::*;

use super::memory::zeros;
use super::simd::{MARGIN, Real, is_finite};

/// The tokens of a tensor: `rows` lines of `length` along the fastest axis.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    /// Lengths of the two slower axes.
    pub outer: [usize; 2],
    pub length: usize,
    pub dilation: usize,
    /// First position of each dilation group in a line, and the end of the last one.
    groups: Vec<usize>,
    /// Distance between lines of a panel.
    pitch: usize,
}

impl Grid {
    pub fn new(lengths: [usize; MAX_RANK], dilation: usize) -> Self {
        let length = lengths[2];
        let mut groups = vec![0];
        for group in 0..dilation {
            groups.push(groups[group] + group_length(length, dilation, group));
        }
        // An odd number of cache lines, so that the lines of a long panel do not share cache sets.
        let pitch = length.next_multiple_of(16) | 16;
        Self { outer: [lengths[0], lengths[1]], length, dilation, groups, pitch }
    }

    pub fn rows(&self) -> usize {
        self.outer[0] * self.outer[1]
    }

    /// Coordinates of a line along the two slower axes.
    pub fn outer_at(&self, row: usize) -> [usize; 2] {
        [row / self.outer[1], row % self.outer[1]]
    }

    pub fn group_length(&self, group: usize) -> usize {
        self.groups[group + 1] - self.groups[group]
    }
}

/// Where a line of tokens is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
    pub group: usize,
    /// Position in the group.
    pub position: usize,
}

pub(super) struct Operand<'a, A: Clone> {
    pub rows: Cow<'a, [A]>,
    pub panel: Vec<A>,
    pub grid: &'a Grid,
    pub heads: usize,
    pub dim: usize,
    /// Whether it is known that no element is infinite or NaN, see [`Self::searched`].
    pub is_finite: bool,
}

impl<'a, A: Real> Operand<'a, A> {
    pub fn new(rows: Cow<'a, [A]>, grid: &'a Grid, heads: usize, dim: usize) -> Self {
        Self { rows, panel: Vec::new(), grid, heads, dim, is_finite: false }
    }

    /// The same, searched for elements that are not finite: worth it if its rows are summed up.
    pub fn searched(mut self) -> Self {
        self.is_finite = self.rows.par_chunks(1 << 14).all(is_finite);
        self
    }

    /// The same with a panel.
    pub fn with_panel(self, batch: usize) -> Self {
        self.with_panel_in(batch, Vec::new())
    }

    /// The same with a panel, in `memory` if it has room for it: to touch new memory takes longer than to fill it.
    pub fn with_panel_in(mut self, batch: usize, memory: Vec<A>) -> Self {
        let (grid, heads, dim) = (self.grid, self.heads, self.dim);
        let line = dim * grid.pitch;
        let len = batch * heads * grid.rows() * line;
        let mut panel = if memory.len() < len + MARGIN {
            // Given back before more is taken.
            drop(memory);
            zeros(len + MARGIN)
        } else {
            memory
        };
        let (lines, _) = panel.split_at_mut(len);
        if line > 0 {
            lines.par_chunks_mut(line).enumerate().for_each(|(index, panel)| {
                let (row, head) = (index % grid.rows(), index / grid.rows() % heads);
                let batch = index / grid.rows() / heads;
                self.transpose(Place { batch, head, row, group: 0, position: 0 }, panel);
            });
        }
        self.panel = panel;
        self
    }

    /// Writes a line of a panel.
    pub fn transpose(&self, line: Place, panel: &mut [A]) {
        let grid = self.grid;
        for group in 0..grid.dilation {
            let (first, step) = (self.row_at(Place { group, ..line }), self.row_step());
            let panel = &mut panel[grid.groups[group]..];
            // Sixteen tokens at a time: whole cache lines are written.
            let length = grid.group_length(group);
            for start in (0..length).step_by(16) {
                let end = length.min(start + 16);
                for d in 0..self.dim {
                    let line = &mut panel[d * grid.pitch..][start..end];
                    let column = self.rows[first + start * step + d..].iter().step_by(step);
                    for (to, from) in line.iter_mut().zip(column) {
                        *to = *from;
                    }
                }
            }
        }
    }

    /// Elements of a line of a panel.
    pub fn panel_line(&self) -> usize {
        self.dim * self.grid.pitch
    }

    /// The vectors of a sample and head.
    pub fn vectors(&self, [batch, head]: [usize; 2]) -> Vectors<'_, A> {
        let place = Place { batch, head, row: 0, group: 0, position: 0 };
        let line = self.grid.length * self.heads * self.dim;
        Vectors {
            elements: &self.rows,
            dim: self.dim,
            step: self.row_step(),
            lines: Lines::Every { first: self.row_at(place), line },
            groups: Groups::Between(self.heads * self.dim),
            is_finite: self.is_finite,
        }
    }

    /// Copies the vectors of a line, dilation groups one after another, and gives whether they are finite.
    pub fn copy_line(&self, line: Place, to: &mut [A]) -> bool {
        let mut all_finite = true;
        let places = (0..self.grid.dilation)
            .flat_map(|group| (0..self.grid.group_length(group)).map(move |at| (group, at)));
        for ((group, position), to) in places.zip(to.chunks_exact_mut(self.dim)) {
            to.copy_from_slice(self.row(Place { group, position, ..line }));
            all_finite &= is_finite(to);
        }
        all_finite
    }

    /// Its own panel, of a sample and head.
    pub fn whole_panel(&self, [batch, head]: [usize; 2]) -> Panel<'_, A> {
        let first = (batch * self.heads + head) * self.grid.rows() * self.panel_line();
        Panel {
            elements: &self.panel,
            grid: self.grid,
            dim: self.dim,
            lines: Lines::Every { first, line: self.panel_line() },
        }
    }

    /// A panel of a sample and head, of which each line of the grid begins where `lines` says.
    pub fn panel_in<'p>(&'p self, elements: &'p [A], lines: &'p [usize]) -> Panel<'p, A> {
        Panel { elements, grid: self.grid, dim: self.dim, lines: Lines::At(lines) }
    }

    /// The memory of its panel, which it has no more.
    pub fn take_panel(&mut self) -> Vec<A> {
        std::mem::take(&mut self.panel)
    }

    /// The first element of a token's vector among the rows.
    pub fn row_at(&self, place: Place) -> usize {
        let grid = self.grid;
        let x = place.group + place.position * grid.dilation;
        let token = (place.batch * grid.rows() + place.row) * grid.length + x;
        (token * self.heads + place.head) * self.dim
    }

    /// Elements between neighbors of a dilation group among the rows.
    pub fn row_step(&self) -> usize {
        self.grid.dilation * self.heads * self.dim
    }

    pub fn row(&self, place: Place) -> &[A] {
        &self.rows[self.row_at(place)..][..self.dim]
    }
}

/// The panel of a sample and head.
#[derive(Clone, Copy)]
pub(super) struct Panel<'p, A> {
    elements: &'p [A],
    grid: &'p Grid,
    pub dim: usize,
    lines: Lines<'p>,
}

/// Where the lines of a panel begin.
#[derive(Clone, Copy)]
enum Lines<'p> {
    /// So far apart, the first one here.
    Every {
        first: usize,
        line: usize,
    },
    At(&'p [usize]),
}

impl Lines<'_> {
    #[inline(always)]
    fn at(&self, row: usize) -> usize {
        match self {
            Lines::Every { first, line } => first + row * line,
            Lines::At(lines) => lines[row],
        }
    }
}

/// The vectors of a sample and head.
#[derive(Clone, Copy)]
pub(super) struct Vectors<'p, A> {
    elements: &'p [A],
    pub dim: usize,
    /// Elements between neighbors of a dilation group.
    pub step: usize,
    lines: Lines<'p>,
    groups: Groups<'p>,
    /// Whether it is known that no element is infinite or NaN.
    pub is_finite: bool,
}

/// Where the dilation groups of a line begin.
#[derive(Clone, Copy)]
enum Groups<'p> {
    /// So far apart.
    Between(usize),
    /// At these vectors.
    At(&'p [usize]),
}

impl<'p, A> Vectors<'p, A> {
    /// Vectors of a sample and head, of which each line of the grid begins where `lines` says, dilation groups one after another.
    pub fn of_lines(
        elements: &'p [A],
        grid: &'p Grid,
        dim: usize,
        lines: &'p [usize],
        is_finite: bool,
    ) -> Self {
        let (lines, groups) = (Lines::At(lines), Groups::At(&grid.groups));
        Self { elements, dim, step: dim, lines, groups, is_finite }
    }

    /// The vectors of `len` neighbors, the first one at `position` of a dilation group.
    #[inline(always)]
    pub fn at(&self, row: usize, group: usize, position: usize, len: usize) -> &'p [A] {
        let group = match self.groups {
            Groups::Between(step) => group * step,
            Groups::At(groups) => groups[group] * self.dim,
        };
        let first = self.lines.at(row) + group + position * self.step;
        &self.elements[first..first + (len - 1) * self.step + self.dim]
    }
}

impl<'p, A> Panel<'p, A> {
    /// The panel from the first component of a token on; the next is [`Self::pitch`] behind.
    #[inline(always)]
    pub fn at(&self, row: usize, group: usize, position: usize) -> &'p [A] {
        &self.elements[self.lines.at(row) + self.grid.groups[group] + position..]
    }

    pub fn pitch(&self) -> usize {
        self.grid.pitch
    }
}

/// Keys and values of the space, or of the additional tokens.
pub(super) struct Tokens<'a, A: Clone> {
    pub key: Operand<'a, A>,
    pub value: Operand<'a, A>,
}

impl<A: Real> Tokens<'_, A> {
    /// The forward pass takes scores with keys and sums values.
    pub fn for_forward(self, batch: usize) -> Self {
        Self { key: self.key.with_panel(batch), value: self.value.searched() }
    }

    /// What the forward pass reads of a sample and head.
    pub fn scores_and_sums(&self, of: [usize; 2]) -> (Panel<'_, A>, Vectors<'_, A>) {
        (self.key.whole_panel(of), self.value.vectors(of))
    }

    /// The pass for `dq` takes scores with both and sums keys.
    pub fn for_query_pass(self, batch: usize) -> Self {
        Self { key: self.key.with_panel(batch).searched(), value: self.value.with_panel(batch) }
    }

    /// The pass for `dk` and `dv` reads the rows of both, one by one: the memory of their panels is free.
    pub fn take_panels(&mut self) -> [Vec<A>; 2] {
        [self.key.take_panel(), self.value.take_panel()]
    }
}
