//! A model writes, byte by byte, with what it remembers.

use std::io::Write as _;
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Failure;
use crate::cli::Write;
use crate::common::device;
use crate::common::flags::Precision;
use crate::model::{LanguageModel, Memory};
use crate::train;

/// Writes behind the prompt, and tells how fast.
pub fn run(args: &Write) -> Result<(), Failure> {
    let device = device::open(args.device, 0, Precision::F32)?;
    let (config, model) = train::load(&args.model, &device)?;
    let prompt = args.prompt.as_bytes();
    if prompt.is_empty() {
        return Err(Failure::Usage("--prompt: has 0 bytes, must have at least 1".to_string()));
    }
    let most = (config.context + 1).saturating_sub(prompt.len());
    if args.count > most {
        let text = format!(
            "--count: is {}, must be at most {most}: the model reads {} bytes, and --prompt has {}",
            args.count,
            config.context,
            prompt.len()
        );
        return Err(Failure::Usage(text));
    }
    let started = Instant::now();
    let written = continued(&model, prompt, args.count, &device, Choice::new(args))?;
    let seconds = started.elapsed().as_secs_f64();
    let text = [prompt, &written].concat();
    // A reader that closes the pipe, such as `head`, has what it wants.
    let _ = writeln!(std::io::stdout(), "{}", String::from_utf8_lossy(&text));
    eprintln!("{:.0} bytes a second", args.count as f64 / seconds);
    Ok(())
}

/// How the next byte is chosen.
pub struct Choice {
    temperature: f64,
    random: StdRng,
}

impl Choice {
    fn new(args: &Write) -> Self {
        Self { temperature: args.temperature, random: StdRng::seed_from_u64(args.seed) }
    }

    /// A byte by its logits.
    fn choose(&mut self, logits: &[f32]) -> u8 {
        let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        let likeliest = likeliest.unwrap_or(0);
        if self.temperature == 0.0 {
            return likeliest as u8;
        }
        let weight = |logit: &f32| f64::from(logit - logits[likeliest]) / self.temperature;
        let weights: Vec<f64> = logits.iter().map(|logit| weight(logit).exp()).collect();
        let mut at = self.random.random_range(0.0..1.0) * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        chosen.unwrap_or(likeliest) as u8
    }
}

/// So many bytes behind a prompt: it is read at once, and each byte that is written then alone.
pub fn continued(
    model: &LanguageModel,
    prompt: &[u8],
    count: usize,
    device: &Device,
    mut choice: Choice,
) -> Result<Vec<u8>, Failure> {
    let mut memory = model.memory();
    let mut logits = read(model, prompt, &mut memory, device)?;
    let mut written = Vec::with_capacity(count);
    while written.len() < count {
        let byte = choice.choose(&logits);
        written.push(byte);
        if written.len() < count {
            logits = read(model, &[byte], &mut memory, device)?;
        }
    }
    Ok(written)
}

/// Reads bytes, and gives the logits of the one behind them.
fn read(
    model: &LanguageModel,
    bytes: &[u8],
    memory: &mut Memory,
    device: &Device,
) -> Result<Vec<f32>, Failure> {
    let numbers: Vec<i64> = bytes.iter().map(|byte| i64::from(*byte)).collect();
    let input = TensorData::new(numbers, [1, bytes.len()]);
    let logits = model.forward_cached(Tensor::<2, Int>::from_data(input, device), memory);
    let last = logits.narrow(1, bytes.len() - 1, 1).into_data();
    last.try_to_vec().map_err(|error| Failure::Run(format!("logits cannot be read: {error:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_choose_as_expected() {
        let logits = [0.0, 2.0, -1.0, 2.0f32.ln()];
        let counts = |temperature| {
            let mut choice = Choice { temperature, random: StdRng::seed_from_u64(1) };
            let mut counts = [0; 4];
            (0..2000).for_each(|_| counts[usize::from(choice.choose(&logits))] += 1);
            counts
        };
        assert_eq!(counts(0.0), [0, 2000, 0, 0]);
        let exact = logits.map(|logit: f32| logit.exp());
        let sum: f32 = exact.iter().sum();
        for (count, exact) in counts(1.0).into_iter().zip(exact) {
            assert!((count as f32 / 2000.0 - exact / sum).abs() < 0.04);
        }
    }
}
