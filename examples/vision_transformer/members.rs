//! The devices that train together.

use std::sync::{Arc, Barrier};

use burn::tensor::{Device, Gradients, Tensor};

use crate::Failure;
use crate::cli::Args;
use crate::common::device;
use crate::common::flags::Backend;

/// A device for each number of `--devices`.
pub fn open(args: &Args) -> Result<Vec<Device>, Failure> {
    let (numbers, members) = (&args.devices, args.devices.len());
    if let Some(twice) = (1..members).find(|place| numbers[..*place].contains(&numbers[*place])) {
        return Err(Failure::Usage(format!("--devices: names {} twice", numbers[twice])));
    }
    if members > 1 && args.device != Backend::Cuda {
        let text =
            format!("--devices: are {members}, and Burn sums gradients on CUDA devices alone");
        return Err(Failure::Usage(text));
    }
    if !args.batch_size.is_multiple_of(members) {
        let size = args.batch_size;
        let text = format!("--batch-size: is {size}, must be a multiple of {members} (--devices)");
        return Err(Failure::Usage(text));
    }
    let open = |number: &usize| device::open(args.device, *number, args.dtype);
    numbers.iter().map(open).collect()
}

/// Keeps the backward passes of devices that share their gradients apart.
///
/// Burn's server of gradients forgets a device that begins its next backward pass before all have ended this one, and then waits for it for
/// ever.
#[derive(Clone, Debug)]
pub struct Together(Option<Arc<Barrier>>);

impl Together {
    /// So many devices, each with a thread of its own.
    pub fn of(members: usize) -> Self {
        Self((members > 1).then(|| Arc::new(Barrier::new(members))))
    }

    /// The gradients of a loss, when all have them.
    pub fn backward(&self, loss: Tensor<1>) -> Gradients {
        let gradients = loss.backward();
        if let Some(barrier) = &self.0 {
            barrier.wait();
        }
        gradients
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::flags::{Parsed, parse};

    fn opened(flags: &[&str]) -> Result<Vec<Device>, String> {
        match parse::<Args>(["vision_transformer"].iter().chain(flags)) {
            Ok(Parsed::Run(args)) => open(&args).map_err(|failure| failure.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn devices_that_cannot_train_together_are_refused() {
        for (flags, expected) in [
            (
                &["--devices", "0,1"][..],
                "--devices: are 2, and Burn sums gradients on CUDA devices alone",
            ),
            (&["--devices", "1"], "--devices: is 1, must be 0 but for --device cuda"),
            (&["--device", "cuda", "--devices", "1,0,1"], "--devices: names 1 twice"),
            (
                &["--device", "cuda", "--devices", "0,1", "--batch-size", "15"],
                "--batch-size: is 15, must be a multiple of 2 (--devices)",
            ),
        ] {
            assert_eq!(opened(flags).expect_err("is to be refused"), expected);
        }
        assert_eq!(opened(&[]), Ok(vec![Device::flex()]));
    }
}
