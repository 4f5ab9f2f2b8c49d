//! Whether the kernels do on a device what they are to do.
//!
//! They were written without such a GPU. So before their first use on one, a small problem is computed, forward and backward, and
//! compared with the Portable kernels: two tiles of queries, blocks that are seen in part, grouped heads, a causal axis and additional
//! tokens. If results differ, or waits of the kernels do not end within seconds, they are not used by the process. That they
//! passed is remembered for the process, and for others in the folder of compiled programs, until the kernels, the compiler or the
//! driver are others. `BURN_NATTEN_SELF_CHECK=0` in the environment trusts them without a check.
//!
//! What a check cannot undo is a fault that the device reports, such as an illegal address: CUDA is lost to the process then.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use half::{bf16, f16};
use sha2::{Digest, Sha256};

use super::backward::backward_by;
use super::forward::{blackwell, forward_by};
use super::program::Program;
use super::{Architecture, BackwardPlan, Schedule, plan, plan_backward};
use crate::native::Element;
use crate::native::compile::{cache_folder, hex, nvrtc_version};
use crate::native::launch::DeviceInfo;
use crate::{
    Axis, KernelError, KeyValue, Operand, Operands, Outputs, Problem, Saved, Shape, Strided,
    portable,
};

/// Results may differ by this much of their root mean square in the mean, and by that of their largest at most: weights are rounded to
/// 8 bits, or 11, where Portable keeps them in f32.
const MEAN: f64 = 0.01;
const MOST: f64 = 0.05;
/// The logsumexp, which both have in f32.
const LSE: f64 = 1e-3;

/// Checks the kernels for an element type on the device of a client, or remembers what was found.
///
/// # Errors
///
/// [`KernelError::Check`] if they are not to be trusted there, and what kept them from running.
pub fn check(client: &Client, element: Element) -> Result<(), KernelError> {
    type Slot = Arc<OnceLock<Result<(), KernelError>>>;
    static KNOWN: LazyLock<Mutex<HashMap<(u16, Element), Slot>>> = LazyLock::new(Mutex::default);
    let (architecture, device) = blackwell(client)?;
    if is_off() || cubecl_server::dry_run::launch_mode().is_skipped() {
        return Ok(());
    }
    let slot = {
        let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.entry((client.service_id().device.index_id, element)).or_default().clone()
    };
    // Two threads that come first wait for one check.
    slot.get_or_init(|| run_or_remember(client, architecture, &device, element)).clone()
}

fn is_off() -> bool {
    std::env::var_os("BURN_NATTEN_SELF_CHECK").is_some_and(|value| value == "0")
}

/// What is computed.
fn problem() -> Problem {
    let axes = [Axis::neighborhood(20, 9), Axis::neighborhood(40, 13).with_causal(true)];
    Problem::new(axes, 2, 128).with_heads_kv(1).with_additional(5)
}

/// The kernels that compute it.
struct Kernels {
    forward: Schedule,
    backward: BackwardPlan,
}

impl Kernels {
    fn new(problem: &Problem, element: Element) -> Result<Self, KernelError> {
        let none = || KernelError::Problem("the check has no schedule".into());
        let forward = plan(problem, element).ok_or_else(none)?;
        let backward = plan_backward(problem, element, None).ok_or_else(none)?;
        Ok(Self { forward, backward })
    }

    /// Where it is remembered that these passed.
    fn file(&self, architecture: Architecture, device: &DeviceInfo) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        let version = nvrtc_version();
        hash.update(format!("{version:?} {} {:?}\n", device.driver, architecture.options()));
        for schedule in std::iter::once(&self.forward).chain(self.backward.schedules()) {
            hash.update(schedule.source(architecture));
        }
        let name = format!("{}.passed", hex(&hash.finalize()));
        cache_folder().map(|folder| folder.join(name))
    }
}

fn run_or_remember(
    client: &Client,
    architecture: Architecture,
    device: &DeviceInfo,
    element: Element,
) -> Result<(), KernelError> {
    let kernels = Kernels::new(&problem(), element)?;
    let file = kernels.file(architecture, device);
    if file.as_deref().is_some_and(|file| file.exists()) {
        return Ok(());
    }
    compare(client, element)?;
    log::info!("burn-natten: the Blackwell kernels passed their check in {}", element.name());
    if let Some(file) = file {
        let kept =
            file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, ""));
        if let Err(error) = kept {
            log::info!("burn-natten: that they passed is not kept on disk: {error}");
        }
    }
    Ok(())
}

/// Computes the problem by both, whatever is remembered, and compares.
///
/// # Errors
///
/// As [`check`].
pub fn compare(client: &Client, element: Element) -> Result<(), KernelError> {
    let problem = &problem();
    let kernels = Kernels::new(problem, element)?;
    let values = Values { client, element };
    let kind = match element {
        Element::F16 => FloatKind::F16,
        Element::Bf16 => FloatKind::BF16,
    };
    let dtype = ElemType::Float(kind);
    let inputs = values.operands(problem);
    let (out, lse) = (Shape::out(problem), Shape::lse(problem));
    let results = || Outputs { out: values.junk(out, 2), lse: values.junk(lse, 4) };
    let (exact, own) = (results(), results());
    portable::forward(client, problem, dtype, false, &inputs, &exact)?;
    forward_by(client, &kernels.forward, problem, &inputs, &own, Program::Bounded)?;
    values.compare("the output", &exact.out, &own.out)?;
    let [expected, found] = [&exact.lse, &own.lse].map(|lse| values.floats(lse));
    // NaN is near nothing.
    let is_near = expected?.iter().zip(found?).all(|(e, f)| (e - f).abs() <= LSE);
    if !is_near {
        return Err(KernelError::Check("the logsumexp differs from Portable's".into()));
    }
    let saved = Saved {
        operands: inputs,
        outputs: Outputs {
            out: Strided::contiguous(exact.out, out),
            lse: Strided::contiguous(exact.lse, lse),
        },
        gradients: Outputs {
            out: values.some(out, 5),
            lse: Strided::contiguous(
                values.client.create_from_slice(&vec![0; 4 * lse.elements()]),
                lse,
            ),
        },
        has_out: true,
    };
    let gradients = || values.gradients(problem);
    let (exact, own) = (gradients(), gradients());
    portable::backward(client, problem, dtype, false, &saved, &exact)?;
    backward_by(client, &kernels.backward, problem, &saved, &own, Program::Bounded)?;
    for ((operand, expected), (_, found)) in exact.iter().zip(own.iter()) {
        if let (Some(expected), Some(found)) = (expected, found) {
            values.compare(&format!("the gradient of {}", operand.name()), expected, found)?;
        }
    }
    Ok(())
}

/// Tensors of the check.
struct Values<'a> {
    client: &'a Client,
    element: Element,
}

impl Values<'_> {
    /// Numbers between -1 and 1 that both types have, different for each `seed`.
    fn some(&self, shape: Shape, seed: u32) -> Strided {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut bytes = Vec::with_capacity(2 * shape.elements());
        for _ in 0..shape.elements() {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let value = (state >> 24) as f32 / 128.0 - 1.0;
            let bits = match self.element {
                Element::F16 => f16::from_f32(value).to_bits(),
                Element::Bf16 => bf16::from_f32(value).to_bits(),
            };
            bytes.extend(bits.to_ne_bytes());
        }
        Strided::contiguous(self.client.create_from_slice(&bytes), shape)
    }

    /// Memory full of NaN.
    fn junk(&self, shape: Shape, size: usize) -> Handle {
        self.client.create_from_slice(&vec![0xff; size * shape.elements()])
    }

    fn operands(&self, problem: &Problem) -> Operands<Strided> {
        let some = |operand: Operand, seed| self.some(operand.shape(problem), seed);
        let mut operands =
            Operands::new(some(Operand::Query, 1), some(Operand::Key, 2), some(Operand::Value, 3));
        operands.additional = Some(KeyValue {
            key: some(Operand::AdditionalKey, 4),
            value: some(Operand::AdditionalValue, 6),
        });
        operands
    }

    fn gradients(&self, problem: &Problem) -> Operands<Option<Handle>> {
        let junk = |operand: Operand| Some(self.junk(operand.shape(problem), 2));
        let mut gradients =
            Operands::new(junk(Operand::Query), junk(Operand::Key), junk(Operand::Value));
        gradients.additional = Some(KeyValue {
            key: junk(Operand::AdditionalKey),
            value: junk(Operand::AdditionalValue),
        });
        gradients
    }

    fn read(&self, handle: &Handle) -> Result<Vec<u8>, KernelError> {
        let failed = |error| KernelError::Check(format!("results cannot be read: {error:?}"));
        self.client.read_one(handle.clone()).map(|bytes| bytes.to_vec()).map_err(failed)
    }

    fn floats(&self, handle: &Handle) -> Result<Vec<f64>, KernelError> {
        let bytes = self.read(handle)?;
        let numbers = bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes)));
        Ok(numbers.collect())
    }

    fn halves(&self, handle: &Handle) -> Result<Vec<f64>, KernelError> {
        let bytes = self.read(handle)?;
        let number = |bytes: &[u8; 2]| match self.element {
            Element::F16 => f16::from_ne_bytes(*bytes).to_f64(),
            Element::Bf16 => bf16::from_ne_bytes(*bytes).to_f64(),
        };
        Ok(bytes.as_chunks().0.iter().map(number).collect())
    }

    fn compare(&self, name: &str, expected: &Handle, found: &Handle) -> Result<(), KernelError> {
        let (expected, found) = (self.halves(expected)?, self.halves(found)?);
        differs(&expected, &found).map_or(Ok(()), |by| {
            Err(KernelError::Check(format!("{name} differs from Portable's by {by}")))
        })
    }
}

/// By how much numbers differ, if it is too much. NaN is never right.
fn differs(expected: &[f64], found: &[f64]) -> Option<String> {
    let (mut square, mut error, mut largest, mut most) = (0.0, 0.0, 0.0f64, 0.0f64);
    let mut is_number = true;
    for (e, f) in expected.iter().zip(found) {
        let difference = (e - f).abs();
        is_number &= difference.is_finite();
        square += e * e;
        error += difference * difference;
        largest = largest.max(e.abs());
        most = most.max(difference);
    }
    let is_right = is_number && error.sqrt() <= MEAN * square.sqrt() && most <= MOST * largest;
    (!is_right).then(|| match is_number {
        true => format!("up to {most:.1e}, where the largest is {largest:.1e}"),
        false => "what is no number".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::sm100::unsupported;

    #[test]
    fn the_problem_has_what_is_to_be_checked() {
        let problem = problem();
        assert_eq!(unsupported(&problem), None);
        for element in [Element::F16, Element::Bf16] {
            let Kernels { forward, backward } = Kernels::new(&problem, element).expect("planned");
            let count = forward.tiling().count(&problem);
            assert!(count.q_tiles > 2 && count.mixed() > 0 && count.visited > 2 * count.q_tiles);
            assert!(backward.additional.is_some());
        }
    }

    #[test]
    fn what_differs_is_found() {
        let expected: Vec<f64> = (0..1000).map(|i| f64::from(i % 17) - 8.0).collect();
        let rounded: Vec<f64> = expected.iter().map(|x| x * (1.0 + 0.5f64.powi(9))).collect();
        assert_eq!(differs(&expected, &rounded), None);
        for wrong in [8.0, f64::NAN, f64::INFINITY] {
            let mut found = rounded.clone();
            found[500] = wrong;
            assert!(differs(&expected, &found).is_some(), "{wrong}");
        }
        // A tile of zeros, and a mask that is one column wide of the mark.
        let mut found = rounded.clone();
        found[..128].fill(0.0);
        assert!(differs(&expected, &found).is_some());
        let shifted: Vec<f64> = expected.iter().map(|x| x + 0.2).collect();
        assert!(differs(&expected, &shifted).is_some());
    }
}
