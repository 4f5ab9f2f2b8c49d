//! From a file to named tensors, whose numbers are read when they are needed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use burn_store::pytorch_reader::PytorchReader;
use burn_store::{ModuleStore, SafetensorsStore, bridge, burn_pack};

use super::WeightsError;

/// Tensors of a file by key.
pub(super) type Tensors = BTreeMap<String, burn_pack::Tensor>;

/// Reads what tensors a file has.
pub(super) fn read(path: &Path) -> Result<Tensors, WeightsError> {
    let error = |reason: String| WeightsError::Read { path: path.to_owned(), reason };
    let start = start_of(path).map_err(|source| error(one_line(&source)))?;
    // The readers report bad files as errors; should one panic, it is the file's fault as well.
    let tensors = catch_unwind(AssertUnwindSafe(|| {
        if is_safetensors(&start) { read_safetensors(path) } else { read_pytorch(path) }
    }))
    .unwrap_or_else(|_| Err("it is damaged".to_owned()))
    .map_err(error)?;
    if tensors.is_empty() {
        return Err(error("it holds no tensors".to_owned()));
    }
    Ok(tensors)
}

/// The length of the header, and the brace that it begins with.
const SAFETENSORS_START: usize = 9;

fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(SAFETENSORS_START as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// PyTorch's formats begin otherwise, and no header of safetensors reaches 2^32 bytes.
fn is_safetensors(start: &[u8]) -> bool {
    start.len() == SAFETENSORS_START && start[4..8] == [0; 4] && start[8] == b'{'
}

fn read_safetensors(path: &Path) -> Result<Tensors, String> {
    let mut store = SafetensorsStore::from_file(path);
    store.get_all_tensors().cloned().map_err(|error| one_line(&error))
}

fn read_pytorch(path: &Path) -> Result<Tensors, String> {
    let reader = PytorchReader::new(path).map_err(|error| one_line(&error))?;
    let tensors = reader.into_tensors().into_iter();
    Ok(tensors.map(|(key, tensor)| (key, bridge::from_pytorch(tensor))).collect())
}

/// The text of another library's error on one line.
pub(super) fn one_line(error: &impl Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
