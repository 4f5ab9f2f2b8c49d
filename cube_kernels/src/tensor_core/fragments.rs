//! Fragments of matrices in registers.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

/// Two neighboring elements.
pub(super) type Pair<F> = Vector<F, Const<2>>;
/// Fragments of some matrices, a unit's share of each.
pub(super) type Fragments<F> = Sequence<Array<Pair<F>>>;

/// `matrices` results full of zeros.
#[cube]
pub(super) fn zeros(#[comptime] matrices: usize) -> Fragments<f32> {
    let mut fragments = Sequence::new();
    #[unroll]
    for _ in 0..matrices {
        let mut fragment = Array::<Pair<f32>>::new(2usize);
        fragment[0] = Pair::new(0.0f32);
        fragment[1] = Pair::new(0.0f32);
        fragments.push(fragment);
    }
    fragments
}
