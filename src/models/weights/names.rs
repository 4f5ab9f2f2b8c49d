//! Which tensors of a file are the weights.

use std::collections::BTreeSet;
use std::path::Path;

use super::WeightsError;
use super::read::Tensors;

/// Parts that training scripts put the weights into.
const PARTS: [&str; 3] = ["state_dict", "model", "model_state_dict"];

/// What PyTorch's wrappers put before every key, and Lightning before those of a module's `model`.
const WRAPPERS: [&str; 3] = ["module", "_orig_mod", "model"];

/// Takes the part of a file that holds the weights, without what leads to it.
pub(super) fn select(
    mut tensors: Tensors,
    part: Option<&str>,
    places: &[(String, Vec<usize>)],
    path: &Path,
) -> Result<Tensors, WeightsError> {
    match part {
        Some(key) => match part_of(&tensors, key) {
            Some(part) => tensors = part,
            None => {
                return Err(WeightsError::TopLevelKey {
                    path: path.to_owned(),
                    key: key.to_owned(),
                    found: parts(&tensors),
                });
            }
        },
        None => {
            let is_flat = tensors.keys().any(|key| places.iter().any(|(place, _)| place == key));
            let part = PARTS.into_iter().find_map(|key| part_of(&tensors, key));
            if let (false, Some(part)) = (is_flat, part) {
                tensors = part;
            }
        }
    }
    // Wrappers may be wrapped. No model here has a part of such a name.
    let unwrapped = |tensors: &Tensors| {
        let of = |wrapper| part_of(tensors, wrapper).filter(|inner| inner.len() == tensors.len());
        WRAPPERS.into_iter().find_map(of)
    };
    while let Some(inner) = unwrapped(&tensors) {
        tensors = inner;
    }
    Ok(tensors)
}

/// The tensors below a key, if there are any.
fn part_of(tensors: &Tensors, part: &str) -> Option<Tensors> {
    let inner: Tensors = tensors
        .iter()
        .filter_map(|(key, tensor)| {
            let key = key.strip_prefix(part)?.strip_prefix('.')?.to_owned();
            let mut tensor = tensor.clone();
            tensor.name = key.clone();
            Some((key, tensor))
        })
        .collect();
    (!inner.is_empty()).then_some(inner)
}

fn parts(tensors: &Tensors) -> String {
    let first = |key: &str| key.split('.').next().unwrap_or_default().to_owned();
    let parts: BTreeSet<_> = tensors.keys().map(|key| first(key)).collect();
    parts.into_iter().take(8).collect::<Vec<_>>().join(", ")
}
