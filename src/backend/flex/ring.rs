//! The lines of keys or values that a strip is at, copied as the strip comes to them into the memory of a thread: they stay in
//! cache, and neighbors lie side by side there.

use super::operand::{Operand, Panel, Place, Vectors};
use super::simd::{MARGIN, Real};
use super::strips::{KeyLines, StripTask, Strips};

/// Lines in use, one behind the other in some order.
struct Copies<A> {
    elements: Vec<A>,
    /// Where each line of the operand's grid begins.
    lines: Vec<usize>,
}

impl<A: Real> Copies<A> {
    const NONE: Self = Self { elements: Vec::new(), lines: Vec::new() };

    /// The memory of a line of a grid of `rows`, `length` elements in `slot`.
    fn slot(&mut self, line: usize, rows: usize, length: usize, slot: usize) -> &mut [A] {
        let first = slot * length;
        if self.elements.len() < first + length + MARGIN {
            self.elements.resize(first + length + MARGIN, A::zero());
        }
        self.lines.resize(rows, 0);
        self.lines[line] = first;
        &mut self.elements[first..][..length]
    }
}

/// What a pass reads of the lines of an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forms {
    pub panel: bool,
    pub vectors: bool,
}

/// The lines of keys or values that are in use.
pub(super) struct Ring<A> {
    forms: Forms,
    panel: Copies<A>,
    vectors: Copies<A>,
    /// Whether all vectors of the strip so far are finite.
    is_finite: bool,
    /// How far the strip has come along the axis that is cut.
    end: usize,
}

impl<A: Real> Ring<A> {
    pub fn new(forms: Forms) -> Self {
        Self { forms, panel: Copies::NONE, vectors: Copies::NONE, is_finite: true, end: 0 }
    }

    /// Forgets its lines, for the first line of queries of a strip.
    pub fn begin(&mut self, task: &StripTask<'_>) {
        self.end = task.strip.keys.as_ref().map_or(0, KeyLines::first);
        self.is_finite = true;
    }

    /// Panel and vectors for line `row` of the queries, with which the strip goes on: those of the whole operand, if it has a
    /// panel or the strip is a part of a line.
    pub fn lines<'r>(
        &'r mut self,
        operand: &'r Operand<'_, A>,
        strips: &Strips,
        task: &StripTask<'_>,
        row: usize,
    ) -> (Panel<'r, A>, Vectors<'r, A>) {
        let (grid, dim) = (operand.grid, operand.dim);
        let Some(keys) = &task.strip.keys else {
            let of = [task.batch, task.head];
            return (operand.whole_panel(of), operand.vectors(of));
        };
        while self.end < keys.end(row) {
            let abreast = strips.abreast(grid);
            let first = self.end % keys.in_use * abreast;
            for (slot, line) in strips.lines(grid, self.end).enumerate() {
                let (slot, rows) = (first + slot, grid.rows());
                let (batch, head) = (task.batch, task.head);
                let place = Place { batch, head, row: line, group: 0, position: 0 };
                if self.forms.panel {
                    let to = self.panel.slot(line, rows, operand.panel_line(), slot);
                    operand.transpose(place, to);
                }
                if self.forms.vectors {
                    let to = self.vectors.slot(line, rows, grid.length * dim, slot);
                    self.is_finite &= operand.copy_line(place, to);
                }
            }
            self.end += 1;
        }
        let (panel, vectors) = (&self.panel, &self.vectors);
        (
            operand.panel_in(&panel.elements, &panel.lines),
            Vectors::of_lines(&vectors.elements, grid, dim, &vectors.lines, self.is_finite),
        )
    }
}
