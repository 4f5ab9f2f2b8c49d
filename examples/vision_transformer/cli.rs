//! The flags.

use std::path::PathBuf;

use clap::Parser;

use crate::common::flags::{Backend, Precision, learning_rate, whole};
use crate::common::training::Optimizer;

/// Train a vision transformer of neighborhood attention to classify pictures.
#[derive(Parser, Clone, Debug)]
#[command(name = "vision_transformer")]
pub struct Args {
    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Numbers of GPUs that train together, each on its share of every batch: 0,1
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    #[arg(value_parser = whole::<0, { usize::MAX }>)]
    pub devices: Vec<usize>,

    /// Type of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,

    /// Passes over the training pictures
    #[arg(long, default_value_t = 22, value_parser = whole::<1, { usize::MAX }>)]
    pub epochs: usize,

    /// Side of the window that a pixel attends to, at least 2
    #[arg(long, default_value_t = 3, value_parser = whole::<2, { usize::MAX }>)]
    pub kernel_size: usize,

    /// Distance between the keys of a window, in every second block [default: 2 where it fits]
    #[arg(long, value_parser = whole::<1, { usize::MAX }>)]
    pub dilation: Option<usize>,

    /// Channels of the two stages, multiples of 16
    #[arg(long, value_name = "N,N", default_value = "32,64", value_parser = two)]
    pub dims: [usize; 2],

    /// Blocks of the two stages
    #[arg(long, value_name = "N,N", default_value = "2,2", value_parser = two)]
    pub depths: [usize; 2],

    /// Pictures in a training step, on all devices together
    #[arg(long, default_value_t = 16, value_parser = whole::<1, { usize::MAX }>)]
    pub batch_size: usize,

    /// Threads that prepare pictures for each device
    #[arg(long, default_value_t = 1, value_parser = whole::<1, { usize::MAX }>)]
    pub workers: usize,

    /// Highest learning rate, above 0 and at most 1
    #[arg(long, default_value_t = 2e-3, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Whose AdamW trains [default: own where built with the feature optim]
    #[arg(long, value_enum, default_value_t, hide_default_value = true)]
    pub optimizer: Optimizer,

    /// Seed of the weights, of the order of the pictures, of mixed sizes and of the split of --images
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Folder for the model, the picture and the checkpoints
    #[arg(long, value_name = "DIR", default_value = "artifacts/vision_transformer")]
    pub output: PathBuf,

    /// Continue from the newest checkpoint in the output folder
    #[arg(long)]
    pub resume: bool,

    /// The digits, a gzipped CSV file [default: the one beside the sources]
    #[arg(long, value_name = "PATH", conflicts_with = "images")]
    pub data: Option<PathBuf>,

    /// Train on your own pictures, DIR/<class>/*.png or *.jpg; a fifth is kept for the test
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Side in pixels that the pictures of --images are resized to, 8 to 512
    #[arg(long, default_value_t = 32, value_parser = whole::<8, 512>)]
    pub image_size: usize,

    /// Take pictures of different sizes: digits of 8 to 12 pixels along each side, drawn by the seed; those of --images keep their
    /// proportions, and --image-size is the longer side
    #[arg(long)]
    pub mixed_sizes: bool,

    /// Train for --steps steps only, from weights and through batches that are the same on every device, without drop path, and
    /// write the loss of each to a CSV file; `cargo xtask losses` draws such files
    #[arg(long, value_name = "PATH", conflicts_with_all = ["epochs", "output", "resume"])]
    pub losses: Option<PathBuf>,

    /// Steps of --losses
    #[arg(long, default_value_t = 200, requires = "losses", value_parser = whole::<1, { usize::MAX }>)]
    pub steps: usize,
}

/// A number for each stage.
fn two(text: &str) -> Result<[usize; 2], String> {
    let numbers: Result<Vec<_>, _> = text.split(',').map(whole::<1, { usize::MAX }>).collect();
    let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| "must be two whole numbers of at least 1, such as 2,4".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use crate::common::flags::{Parsed, parse};

    fn refused(flags: &[&str]) -> String {
        let arguments = ["vision_transformer"].iter().chain(flags);
        match parse::<Args>(arguments) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{flags:?} gave {other:?}"),
        }
    }

    #[test]
    fn no_flags_are_needed() {
        let Ok(Parsed::Run(args)) = parse::<Args>(["vision_transformer"]) else {
            panic!("the defaults are refused");
        };
        assert_eq!((args.device, args.dtype, args.resume), (Backend::Flex, Precision::F32, false));
        assert_eq!((args.dims, args.depths), ([32, 64], [2, 2]));
        assert!(!args.mixed_sizes);
    }

    #[test]
    fn sizes_are_mixed_with_digits_and_with_folders() {
        for flags in [&["--mixed-sizes"][..], &["--images", "a", "--mixed-sizes"]] {
            let Ok(Parsed::Run(args)) = parse(["vision_transformer"].iter().chain(flags)) else {
                panic!("{flags:?} are refused");
            };
            let args: Box<Args> = args;
            assert!(args.mixed_sizes);
        }
        let text = refused(&["--mixed-sizes=yes"]);
        assert!(text.contains("--mixed-sizes") && text.contains("yes"), "{text}");
    }

    #[test]
    fn refusals_are_one_line_that_names_flag_and_value() {
        for (flags, parts) in [
            (&["--device", "tpu"][..], &["--device", "tpu", "flex, cpu, wgpu, cuda"][..]),
            (&["--epochs", "0"], &["--epochs", "0", "at least 1"]),
            (&["--kernel-size", "1"], &["--kernel-size", "1"]),
            (&["--learning-rate", "2"], &["--learning-rate", "2", "at most 1"]),
            (&["--image-size", "4"], &["--image-size", "4", "from 8 to 512"]),
            (&["--depths", "2"], &["--depths", "2", "two whole numbers"]),
            (&["--dims", "32,0"], &["--dims", "32,0", "two whole numbers"]),
            (&["--seed", "x"], &["--seed", "x"]),
            (&["--devices", "0,x"], &["--devices", "x"]),
            (&["--images", "a", "--data", "b"], &["--images", "--data"]),
            (&["--nonsense"], &["--nonsense"]),
            (&["stray"], &["stray"]),
        ] {
            let text = refused(flags);
            assert!(!text.contains('\n') && !text.contains("--help"), "{text}");
            assert!(parts.iter().all(|part| text.contains(part)), "{flags:?}: {text}");
        }
    }

    #[test]
    fn help_is_no_error() {
        let Ok(Parsed::Text(text)) = parse::<Args>(["vision_transformer", "--help"]) else {
            panic!("--help is refused");
        };
        assert!(text.contains("--images"));
    }
}
