//! Kernels for all sequences of a packed batch at once.
//!
//! They are those of one problem but for where a cube finds what it is of, see [`cube`](crate::cube). One blueprint computes all
//! sequences, whatever their lengths and windows. It is the one for the sequence that has most to do, with lengths rounded
//! up, so that batches of other lengths have the same kernels.

use super::tune::representative;
use super::{BackwardPlan, Blueprint, Capability, plan, plan_backward};
use crate::{Packed, Problem};

/// What kernels for all sequences are chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct All {
    /// The problem that stands for them.
    pub like: Problem,
    /// Whether queries of any stand elsewhere than keys of the same number.
    pub has_origin: bool,
}

impl All {
    pub fn of(packed: &Packed) -> Self {
        // Boxes of fewer axes are none for sequences of more, and those of axes that are taken together, as where windows cover
        // their space, none for sequences whose axes are not.
        let rank = packed.rank();
        let most =
            packed.problems().filter(|problem| problem.rank() == rank).max_by_key(|problem| {
                let seen: usize = problem.axes.iter().map(|axis| axis.kernel_size).product();
                (problem.normalized() == **problem, problem.queries() * seen)
            });
        Self {
            like: representative(most.unwrap_or(packed.line())),
            has_origin: packed.problems().any(Problem::has_origin),
        }
    }

    /// The kernel for all, from the one for the problem that stands for them.
    pub fn blueprint(&self, like: &Blueprint) -> Blueprint {
        Blueprint { has_origin: self.has_origin, is_packed: true, ..*like }
    }

    /// The same of all kernels of the backward pass.
    pub fn plan(&self, like: &BackwardPlan) -> BackwardPlan {
        let all = |kernels: &[Blueprint]| kernels.iter().map(|own| self.blueprint(own)).collect();
        BackwardPlan {
            queries: self.blueprint(&like.queries),
            keys: all(&like.keys),
            additional: vec![],
        }
    }
}

/// The blueprint for all sequences of a packed batch, for rows read in vectors of `vector` elements; `None` where none fits
/// the device.
pub fn plan_packed(packed: &Packed, capability: &Capability, vector: usize) -> Option<Blueprint> {
    let all = All::of(packed);
    plan(&all.like, capability, vector).map(|blueprint| all.blueprint(&blueprint))
}

/// The kernels of the backward pass for all sequences; `None` where one does not fit the device.
pub fn plan_backward_packed(
    packed: &Packed,
    capability: &Capability,
    vector: usize,
) -> Option<BackwardPlan> {
    let all = All::of(packed);
    plan_backward(&all.like, capability, vector).map(|plan| all.plan(&plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Sequence};

    fn packed(sequences: impl IntoIterator<Item = Problem>) -> Packed {
        let mut tokens = [0, 0];
        let sequences: Vec<_> = sequences
            .into_iter()
            .map(|problem| {
                let [query, key] = tokens;
                tokens = [query + problem.queries(), key + problem.keys()];
                Sequence { problem, query, key }
            })
            .collect();
        Packed::new(sequences, tokens).expect("one launch")
    }

    fn image(height: usize, width: usize, window: usize) -> Problem {
        let axis = |length: usize| Axis::neighborhood(length, window.min(length));
        Problem::new([axis(height), axis(width)], 4, 64)
    }

    fn text(queries: usize, keys: usize) -> Problem {
        Problem::new([Axis::dense(queries, keys, true)], 8, 128)
    }

    fn kernels(packed: &Packed) -> Vec<Blueprint> {
        let capability = Capability::cuda(90).expect("Hopper");
        let forward = plan_packed(packed, &capability, 8).expect("a blueprint");
        let backward = plan_backward_packed(packed, &capability, 8).expect("a plan");
        let all: Vec<_> = [forward].into_iter().chain(backward.blueprints().copied()).collect();
        assert!(all.iter().all(|kernel| kernel.fits_packed(packed)), "{all:?}");
        all
    }

    #[test]
    fn other_lengths_have_the_same_kernels() {
        let images = |add: usize| {
            packed((0..40).map(|i| image(16 + (i * 7 + add) % 80, 17 + (i * 11 + add) % 70, 7)))
        };
        let first = kernels(&images(0));
        assert!((1..30).all(|add| kernels(&images(add)) == first));
        let texts = |add: usize| packed((0..60).map(|i| text(5000 + 13 * i + add, 6000 + 7 * i)));
        let first = kernels(&texts(0));
        assert!((1..30).all(|add| kernels(&texts(5 * add)) == first));
    }

    #[test]
    fn one_blueprint_fits_sequences_of_every_kind() {
        // The one that has most to do has an axis of one.
        let spaces = kernels(&packed([image(1, 4000, 900), image(20, 30, 5), image(1, 1, 1)]));
        assert!(spaces.iter().all(|kernel| kernel.rank == 2));
        // Where queries stand elsewhere in one alone.
        let texts = kernels(&packed([text(4000, 4000), text(1, 90), text(7, 7)]));
        assert!(texts.iter().all(|kernel| kernel.has_origin));
        let texts = kernels(&packed([text(4000, 4000), text(7, 7)]));
        assert!(texts.iter().all(|kernel| !kernel.has_origin));
    }

    #[test]
    fn a_kernel_for_sequences_is_none_for_a_problem() {
        let batch = packed([image(20, 30, 5)]);
        let kernel = kernels(&batch)[0];
        let problem = batch.sequences()[0].problem;
        assert!(!kernel.fits(&problem));
        let own = Blueprint { is_packed: false, ..kernel };
        assert!(own.fits(&problem) && !own.fits_packed(&batch));
    }
}
