//! The streaming softmax of the forward passes.

use macerator::Simd;

use super::simd::{BLOCK, Real, max};

/// The softmax of the rows of a block so far.
pub(super) struct Softmax<A> {
    pub max: [A; BLOCK],
    pub sum: [A; BLOCK],
}

impl<A: Real> Softmax<A> {
    pub fn new() -> Self {
        Self { max: [A::neg_infinity(); BLOCK], sum: [A::zero(); BLOCK] }
    }

    /// Makes weights of the next `len` scores of every row, and scales what was summed with earlier
    /// weights, `dim` elements a row, to the greatest score so far.
    ///
    /// # Safety
    ///
    /// An array of scores ends with a margin.
    #[inline(always)]
    pub unsafe fn weigh<S: Simd>(
        &mut self,
        scores: &mut [Vec<A>; BLOCK],
        len: usize,
        sums: &mut [A],
        dim: usize,
    ) {
        for i in 0..BLOCK {
            let greatest = max::<S, A>(&scores[i][..len]);
            if greatest == A::neg_infinity() {
                // No column is the token's own, or all its scores are `-inf`, or NaN: these must
                // not get lost, the others weigh nothing.
                if scores[i][..len].iter().any(|score| score.is_nan()) {
                    self.sum[i] = A::nan();
                }
                scores[i][..len].fill(A::zero());
                continue;
            }
            if greatest > self.max[i] {
                let correction = (self.max[i] - greatest).exp();
                self.max[i] = greatest;
                self.sum[i] = self.sum[i] * correction;
                for sum in &mut sums[i * dim..][..dim] {
                    *sum = *sum * correction;
                }
            }
            // SAFETY: the caller's.
            let part = unsafe { A::exp_sub::<S>(scores[i].as_mut_ptr(), len, self.max[i]) };
            self.sum[i] = self.sum[i] + part;
        }
    }
}
