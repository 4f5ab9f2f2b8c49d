//! What a plane sums.

use super::super::blueprint::{Blueprint, Operand};

/// What a plane sums, of what the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// All of it.
    Both,
    /// Gradients of values.
    Values,
    /// Gradients of keys.
    Keys,
}

impl Role {
    /// How it multiplies the rows' first vectors: it holds those that it does.
    pub fn rows_first(self, operand: Operand) -> Operand {
        Operand { is_held: operand.is_held && self != Self::Keys, ..operand }
    }

    /// How it multiplies the rows' second vectors.
    pub fn rows_second(self, operand: Operand) -> Operand {
        Operand { is_held: operand.is_held && self != Self::Values, ..operand }
    }
}

/// A kernel, and what a plane does of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub blueprint: Blueprint,
    pub role: Role,
}

impl Part {
    /// Whether it sums gradients of first vectors.
    pub fn has_first(&self) -> bool {
        self.blueprint.has_first && self.role != Role::Values
    }

    /// Whether it sums gradients of second vectors.
    pub fn has_second(&self) -> bool {
        self.blueprint.has_second && self.role != Role::Keys
    }
}
