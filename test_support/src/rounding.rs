//! What tf32 makes of inputs that are f32.

use burn_natten_kernels::Problem;

use crate::compare::norms;
use crate::element::TF32;
use crate::format::F32;
use crate::oracle::{compute, compute_rounded};
use crate::{Data, Results};

/// What is right, and what it is with rounded operands.
pub struct Expected {
    exact: Results,
    pub rounded: Results,
}

impl Expected {
    pub fn of(problem: &Problem, data: &Data) -> Self {
        let rounded = compute_rounded(problem, data, F32.round, TF32.round);
        Self { exact: compute(problem, data, F32.round), rounded }
    }

    /// Fails unless errors are at most twice those of rounding. Gives their ratio.
    pub fn check(&self, what: &str, name: &str, actual: &[f64]) -> f64 {
        let find = |results: &'_ Results| {
            let found = results.named().into_iter().find(|(known, _)| *known == name);
            found.expect("a name of a result").1.to_vec()
        };
        let (exact, rounded) = (find(&self.exact), find(&self.rounded));
        assert_eq!(actual.len(), exact.len(), "{what}: {name}");
        let error = |values: &[f64]| norms(values.iter().zip(&exact).map(|(a, e)| a - e));
        let ((rms, most), (base_rms, base_most)) = (error(actual), error(&rounded));
        let text = format!(
            "{what}: {name} off by {rms:.1e} rms, of {base_rms:.1e}, and {most:.1e} at most, of {base_most:.1e}"
        );
        assert!(rms <= 2.0 * base_rms && most <= 2.0 * base_most, "{text}");
        // Of inputs that tf32 does not have.
        assert!(base_rms > 1e-6, "{text}");
        rms / base_rms
    }
}
