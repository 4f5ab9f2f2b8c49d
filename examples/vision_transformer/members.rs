//! The devices that train together.

use std::sync::atomic::{AtomicUsize, Ordering};
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

/// What a member's mean over its pictures counts: the mean over members is then that over `all` pictures, however many each has.
pub fn weight(pictures: usize, members: usize, all: usize) -> f32 {
    (pictures * members) as f32 / all as f32
}

/// Keeps the backward passes of devices that share their gradients apart, and weighs what each has seen.
///
/// Burn's server of gradients forgets a device that begins its next backward pass before all have ended this one, and then waits for it for
/// ever.
///
/// It waits for ever in one more case, which is not mended here: tasks wait in a device's queue until there are 32 of them or somebody waits for
/// one. A device that has ended its pass leaves its part of a sum there, the others wait for it on their GPUs, their queues fill up,
/// and with them stands the server, which feeds all. Seen on two GPUs with some hundred parameters and steps that are bound by the GPU.
#[derive(Clone, Debug)]
pub struct Together(Option<Arc<Meeting>>);

/// Where the devices' threads meet.
#[derive(Debug)]
struct Meeting {
    members: usize,
    everyone: Barrier,
    /// What the members train on in this step.
    pictures: AtomicUsize,
}

impl Together {
    /// So many devices, each with a thread of its own.
    pub fn of(members: usize) -> Self {
        let meeting =
            || Meeting { members, everyone: Barrier::new(members), pictures: AtomicUsize::new(0) };
        Self((members > 1).then(|| Arc::new(meeting())))
    }

    /// A member's mean loss of so many pictures, by its [`weight`]. Every member calls it, once a step.
    pub fn weigh(&self, loss: Tensor<1>, pictures: usize) -> Tensor<1> {
        let Some(meeting) = &self.0 else { return loss };
        meeting.pictures.fetch_add(pictures, Ordering::SeqCst);
        meeting.everyone.wait();
        let all = meeting.pictures.load(Ordering::SeqCst);
        meeting.everyone.wait();
        // Before the next step is counted, which waits for this member.
        meeting.pictures.fetch_sub(pictures, Ordering::SeqCst);
        loss * weight(pictures, meeting.members, all)
    }

    /// The gradients of a loss, when all have them.
    pub fn backward(&self, loss: Tensor<1>) -> Gradients {
        let gradients = loss.backward();
        if let Some(meeting) = &self.0 {
            meeting.everyone.wait();
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
    fn losses_count_by_their_pictures() {
        let steps = [[1, 2, 3], [4, 4, 4], [5, 1, 1]];
        let together = Together::of(3);
        let weights = |member: usize| {
            steps.map(|pictures| {
                let loss = Tensor::<1>::from_floats([1.0], &Device::flex());
                together.weigh(loss, pictures[member]).into_scalar::<f32>()
            })
        };
        let weights: Vec<[f32; 3]> = std::thread::scope(|scope| {
            let weights = &weights;
            let start = |member| scope.spawn(move || weights(member));
            let threads: Vec<_> = (0..3).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("has met the others")).collect()
        });
        for (step, pictures) in steps.iter().enumerate() {
            let all: usize = pictures.iter().sum();
            for (member, own) in pictures.iter().enumerate() {
                assert_eq!(weights[member][step], (own * 3) as f32 / all as f32);
            }
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
