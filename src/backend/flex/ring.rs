//! A panel of the lines that a strip is at: made as the strip comes to them, in the memory of a thread, so that it stays in cache.

use super::operand::{Operand, Panel, Place};
use super::simd::{MARGIN, Real};
use super::strips::{KeyLines, StripTask, Strips};

/// The lines of keys or values that are in use.
pub(super) struct Ring<A> {
    elements: Vec<A>,
    /// Where each line of the operand's grid begins that the strip has come to.
    lines: Vec<usize>,
    /// How far the strip has come along the axis that is cut.
    end: usize,
}

impl<A: Real> Ring<A> {
    pub fn new() -> Self {
        Self { elements: Vec::new(), lines: Vec::new(), end: 0 }
    }

    /// Forgets its lines, for the first line of queries of a strip.
    pub fn begin(&mut self, task: &StripTask<'_>) {
        self.end = task.strip.keys.as_ref().map_or(0, KeyLines::first);
    }

    /// The panel for line `row` of the queries, with which the strip goes on: that of the whole operand, if it has one.
    pub fn panel<'r>(
        &'r mut self,
        operand: &'r Operand<'_, A>,
        strips: &Strips,
        task: &StripTask<'_>,
        row: usize,
    ) -> Panel<'r, A> {
        let keys = task.strip.keys.as_ref().filter(|_| operand.panel.is_empty());
        let Some(keys) = keys else { return operand.whole_panel([task.batch, task.head]) };
        self.lines.resize(operand.grid.rows(), 0);
        while self.end < keys.end(row) {
            let lines = strips.lines(operand.grid, self.end);
            let (slot, length) = (self.end % keys.in_use, operand.panel_line());
            for (abreast, line) in lines.enumerate() {
                let first = (slot * strips.abreast(operand.grid) + abreast) * length;
                if self.elements.len() < first + length + MARGIN {
                    self.elements.resize(first + length + MARGIN, A::zero());
                }
                let (batch, head) = (task.batch, task.head);
                let place = Place { batch, head, row: line, group: 0, position: 0 };
                operand.transpose(place, &mut self.elements[first..][..length]);
                self.lines[line] = first;
            }
            self.end += 1;
        }
        operand.panel_in(&self.elements, &self.lines)
    }
}
