//! Texts to train on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Failure;
use crate::cli::Source;

/// One in this many bytes is for validation.
const VALIDATION: usize = 10;
/// Letters that copies are made of: 4 bits each.
pub const LETTERS: usize = 16;

/// Bytes, and how sequences are cut out of them.
#[derive(Clone, Debug)]
pub struct Text {
    pub bytes: Arc<[u8]>,
    /// Bytes of a sequence; its tokens and the byte behind each are one less.
    pub sequence: usize,
    /// Whether sequences may begin anywhere, or one begins where the one before ends.
    pub is_running: bool,
}

/// A text to learn, and one that is only watched.
#[derive(Clone, Debug)]
pub struct Texts {
    pub train: Text,
    pub valid: Text,
}

impl Texts {
    /// The text of the flags, for sequences of `length` tokens.
    pub fn find(source: &Source, length: usize, seed: u64) -> Result<Self, Failure> {
        let sequence = length + 1;
        let texts = match (&source.text, source.copies) {
            (_, Some(count)) => {
                let make = |count: usize, seed| Text {
                    bytes: copies(count.div_ceil(sequence), sequence, seed).into(),
                    sequence,
                    is_running: false,
                };
                let valid = make(count / VALIDATION, seed ^ u64::MAX);
                return Ok(Self { train: make(count, seed), valid });
            }
            (Some(path), None) => read(path)?,
            (None, None) => documentation()?,
        };
        let kept = texts.len() / VALIDATION;
        if kept < sequence {
            let most = kept.saturating_sub(1);
            let (got, all) = (length, texts.len());
            let text = format!(
                "--length: is {got}, must be at most {most}: a tenth of {all} bytes is for validation"
            );
            return Err(Failure::Usage(text));
        }
        let (train, valid) = texts.split_at(texts.len() - kept);
        let text = |bytes: &[u8]| Text { bytes: bytes.into(), sequence, is_running: true };
        Ok(Self { train: text(train), valid: text(valid) })
    }
}

impl Text {
    /// Bytes from the beginning of a sequence to that of the next: the last byte of a running text is expected in one, and seen in the
    /// next.
    fn step(&self) -> usize {
        if self.is_running { self.sequence - 1 } else { self.sequence }
    }

    /// How many sequences there are, wherever the first begins.
    pub fn sequences(&self) -> usize {
        let spare = if self.is_running { self.step() } else { 1 };
        (self.bytes.len().saturating_sub(self.sequence + spare - 1) / self.step() + 1).max(1)
    }

    /// By how many bytes the first sequence may begin later.
    pub fn offsets(&self) -> usize {
        let last = (self.sequences() - 1) * self.step() + self.sequence;
        if self.is_running { self.bytes.len() - last + 1 } else { 1 }
    }

    /// A sequence, where the first begins at `offset`.
    pub fn sequence(&self, number: usize, offset: usize) -> &[u8] {
        &self.bytes[offset + number * self.step()..][..self.sequence]
    }
}

/// Sequences of `length` bytes: random letters, from a quarter to half as many as there are bytes, the same letters again, and again.
///
/// What comes behind the first repeat cannot be expected without what stands that far before.
fn copies(sequences: usize, length: usize, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = Vec::with_capacity(sequences * length);
    for _ in 0..sequences.max(1) {
        let period = random.random_range((length / 4).max(1)..=(length / 2).max(1));
        let letters: Vec<u8> =
            (0..period).map(|_| b'a' + random.random_range(0..LETTERS as u8)).collect();
        bytes.extend(letters.iter().cycle().take(length));
    }
    bytes
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::Run(format!("{}: cannot be read, {error}", path.display())))
}

/// The documentation beside the sources: the guide, and what is written at the top of modules and items.
fn documentation() -> Result<Vec<u8>, Failure> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&sources, &mut files)?;
    files.sort();
    let mut text = Vec::new();
    for file in files {
        let content = String::from_utf8_lossy(&read(&file)?).into_owned();
        let is_guide = file.extension().is_some_and(|extension| extension == "md");
        for line in content.lines() {
            let line = match is_guide {
                true => Some(line),
                false => {
                    ["//! ", "/// "].iter().find_map(|start| line.trim_start().strip_prefix(start))
                }
            };
            if let Some(line) = line {
                text.extend_from_slice(line.as_bytes());
                text.push(b'\n');
            }
        }
    }
    Ok(text)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::Run(format!("{}: cannot be read, {error}; name a --text", folder.display()))
    };
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md" || extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_texts_are_seen_whole_and_copies_from_their_beginning() {
        let bytes: Arc<[u8]> = (0..23u8).collect();
        let text = Text { bytes: bytes.clone(), sequence: 6, is_running: true };
        assert_eq!((text.sequences(), text.offsets()), (3, 8));
        assert_eq!(text.sequence(2, 7), [17, 18, 19, 20, 21, 22]);
        let text = Text { bytes, sequence: 6, is_running: false };
        assert_eq!((text.sequences(), text.offsets()), (3, 1));
        assert_eq!(text.sequence(2, 0), [12, 13, 14, 15, 16, 17]);
    }

    #[test]
    fn any_length_that_is_accepted_has_a_sequence() {
        for count in 6..40usize {
            for is_running in [false, true] {
                let text = Text { bytes: vec![0; count].into(), sequence: 6, is_running };
                let last = text.sequence(text.sequences() - 1, text.offsets() - 1);
                assert_eq!(last.len(), 6, "{count}");
            }
        }
    }

    #[test]
    fn copies_come_again() {
        let text = copies(20, 65, 3);
        assert_eq!(text.len(), 20 * 65);
        for sequence in text.chunks(65) {
            let comes_again =
                |period: &usize| sequence.iter().zip(&sequence[*period..]).all(|(a, b)| a == b);
            let period = (1..65).find(comes_again).expect("has a period");
            assert!((16..=32).contains(&period), "{period}");
        }
        assert_eq!(text, copies(20, 65, 3));
        assert_ne!(text, copies(20, 65, 4));
    }

    #[test]
    fn the_documentation_is_there_and_long_sequences_are_refused() {
        let source = Source { text: None, copies: None };
        let texts = Texts::find(&source, 512, 1).expect("is beside the sources");
        let has = |part: &str| texts.train.bytes.windows(part.len()).any(|w| w == part.as_bytes());
        assert!(texts.train.bytes.len() > 100_000 && has("neighborhood attention"));
        let error = Texts::find(&source, 1 << 22, 1).expect_err("is too long").to_string();
        assert!(error.starts_with("--length: is 4194304, must be at most "), "{error}");
    }
}
