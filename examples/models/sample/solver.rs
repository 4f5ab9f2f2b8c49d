//! From noise to pictures, along `d state / d sigma = (state - denoised(state, sigma)) / sigma`.
//!
//! Reference: [Elucidating the Design Space of Diffusion-Based Generative
//! Models](https://arxiv.org/abs/2206.00364), [DPM-Solver++](https://arxiv.org/abs/2211.01095).

use burn::tensor::Tensor;

use crate::cli::Sampler;

/// How much closer noise levels are at the end.
const RHO: f64 = 7.0;

/// `steps` noise levels from the highest to the lowest, evenly in their 7th root, and 0.
pub fn karras([lowest, highest]: [f64; 2], steps: usize) -> Vec<f64> {
    let [last, first] = [lowest, highest].map(|sigma| sigma.powf(1.0 / RHO));
    let at = |step: usize| first + (last - first) * step as f64 / (steps - 1).max(1) as f64;
    (0..steps).map(|step| at(step).powf(RHO)).chain([0.0]).collect()
}

/// Takes the state from the first noise level to the last.
pub fn solve(
    sampler: Sampler,
    sigmas: &[f64],
    start: Tensor<4>,
    denoise: impl Fn(Tensor<4>, f64) -> Tensor<4>,
) -> Tensor<4> {
    match sampler {
        Sampler::Heun => heun(sigmas, start, denoise),
        Sampler::Dpmpp2m => dpmpp_2m(sigmas, start, denoise),
    }
}

/// Heun's method: the slope is the mean of those at both ends of a step, but at the noise level 0.
fn heun(
    sigmas: &[f64],
    start: Tensor<4>,
    denoise: impl Fn(Tensor<4>, f64) -> Tensor<4>,
) -> Tensor<4> {
    let slope =
        |state: &Tensor<4>, sigma: f64| (state.clone() - denoise(state.clone(), sigma)) / sigma;
    let mut state = start;
    for pair in sigmas.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let first = slope(&state, from);
        let euler = state.clone() + first.clone() * (to - from);
        state = if to == 0.0 {
            euler
        } else {
            let second = slope(&euler, to);
            state + (first + second) * (0.5 * (to - from))
        };
    }
    state
}

/// DPM-Solver++ (2M): in `t = -ln(sigma)` the linear part is exact, and what is denoised is
/// extrapolated from the last two steps.
fn dpmpp_2m(
    sigmas: &[f64],
    start: Tensor<4>,
    denoise: impl Fn(Tensor<4>, f64) -> Tensor<4>,
) -> Tensor<4> {
    let mut state = start;
    let mut before: Option<(Tensor<4>, f64)> = None;
    for pair in sigmas.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let denoised = denoise(state.clone(), from);
        let step = (from / to).ln();
        let target = match before.take() {
            Some((last, last_step)) if to > 0.0 => {
                let weight = step / (2.0 * last_step);
                denoised.clone() * (1.0 + weight) - last * weight
            }
            _ => denoised.clone(),
        };
        state = state * (to / from) + target * (1.0 - to / from);
        before = Some((denoised, step));
    }
    state
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn noise_levels_fall_to_zero() {
        let sigmas = karras([0.01, 80.0], 5);
        assert!((sigmas[0] - 80.0).abs() < 1e-9 && (sigmas[4] - 0.01).abs() < 1e-12);
        assert_eq!((sigmas.len(), sigmas[5]), (6, 0.0));
        assert!(sigmas.windows(2).all(|pair| pair[0] > pair[1]));
        // ((80^(1/7) + 0.01^(1/7)) / 2)^7
        assert!((sigmas[2] - 3.4603421725).abs() < 1e-6, "{}", sigmas[2]);
    }

    /// Of data with the deviation `DATA`, what is denoised and the way from noise are known.
    const DATA: f64 = 0.5;

    fn error(sampler: Sampler, steps: usize) -> f64 {
        let device = Device::flex();
        let start = Tensor::<4>::full([1, 1, 1, 2], 8.0, &device);
        let denoise =
            |state: Tensor<4>, sigma: f64| state * (DATA * DATA / (DATA * DATA + sigma * sigma));
        let end = solve(sampler, &karras([0.01, 10.0], steps), start, denoise);
        let got: f32 = end.mean().into_scalar();
        let exact = 8.0 * DATA / (DATA * DATA + 100.0f64).sqrt();
        (f64::from(got) / exact - 1.0).abs()
    }

    #[test]
    fn the_exact_way_is_found_and_the_error_falls_with_the_square_of_the_steps() {
        for sampler in [Sampler::Heun, Sampler::Dpmpp2m] {
            let (few, many) = (error(sampler, 20), error(sampler, 80));
            assert!(many < 2e-3 && few > 6.0 * many, "{sampler:?}: {few} {many}");
        }
    }
}
