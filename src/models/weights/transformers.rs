//! NAT and DiNAT as `transformers` names them, which has query, key and value apart.

use burn::tensor::{DType, Shape, TensorData};
use burn_store::{bridge, burn_pack};

use super::read::Tensors;

/// Modules outside of the blocks.
const MODULES: [(&str, &str); 4] = [
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("embeddings.norm", "patch_embed.norm"),
    ("layernorm", "norm"),
    ("classifier", "head"),
];

/// Modules of a block.
const BLOCK: [(&str, &str); 9] = [
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("attention.self.rpb", "attn.rpb"),
    ("attention.self.query", "attn.query"),
    ("attention.self.key", "attn.key"),
    ("attention.self.value", "attn.value"),
    ("attention.output.dense", "attn.proj"),
    ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
];

/// What precedes the key of a level.
const LEVELS: &str = "encoder.levels.";

/// Gives tensors the keys of the authors' models, if they have those of `transformers`.
pub(super) fn rename(tensors: Tensors) -> Tensors {
    if !tensors.keys().any(|key| without_prefix(key).starts_with(LEVELS)) {
        return tensors;
    }
    let mut renamed = Tensors::new();
    for (key, tensor) in tensors {
        let key = new_key(&key).unwrap_or(key);
        insert(&mut renamed, key, tensor);
    }
    let blocks: Vec<String> = renamed
        .keys()
        .filter_map(|key| Some(key.strip_suffix("attn.query.weight")?.to_owned()))
        .collect();
    for block in blocks {
        join(&mut renamed, &block, "weight");
        join(&mut renamed, &block, "bias");
    }
    let blocks: Vec<String> = renamed
        .keys()
        .filter_map(|key| Some(key.strip_suffix("layer_scale_parameters")?.to_owned()))
        .collect();
    for block in blocks {
        split_layer_scale(&mut renamed, &block);
    }
    renamed
}

/// Without the name of the base model, which is there if a head is on it.
fn without_prefix(key: &str) -> &str {
    let base = ["nat.", "dinat."].into_iter().find_map(|prefix| key.strip_prefix(prefix));
    base.unwrap_or(key)
}

fn new_key(key: &str) -> Option<String> {
    let key = without_prefix(key);
    let Some(inner) = key.strip_prefix(LEVELS) else {
        return replaced(key, &MODULES);
    };
    let (level, inner) = inner.split_once('.')?;
    let Some(inner) = inner.strip_prefix("layers.") else {
        return Some(format!("levels.{level}.{inner}"));
    };
    let (block, inner) = inner.split_once('.')?;
    let inner = replaced(inner, &BLOCK).unwrap_or_else(|| inner.to_owned());
    Some(format!("levels.{level}.blocks.{block}.{inner}"))
}

fn replaced(key: &str, names: &[(&str, &str)]) -> Option<String> {
    names.iter().find_map(|(old, new)| {
        let rest = key.strip_prefix(old)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{new}{rest}"))
    })
}

fn insert(tensors: &mut Tensors, key: String, mut tensor: burn_pack::Tensor) {
    tensor.name.clone_from(&key);
    tensors.insert(key, tensor);
}

/// Joins query, key and value of a block along their outputs. If they do not fit together they stay
/// as they are, and are unused.
fn join(tensors: &mut Tensors, block: &str, parameter: &str) {
    let keys = ["query", "key", "value"].map(|part| format!("{block}attn.{part}.{parameter}"));
    let parts: Vec<_> = keys.iter().filter_map(|key| tensors.get(key).cloned()).collect();
    let [query, key, value] = &parts[..] else { return };
    let fits = |other: &burn_pack::Tensor| {
        other.shape == query.shape && other.dtype == query.dtype && has_bytes(other.dtype)
    };
    if query.shape.is_empty() || !fits(query) || !fits(key) || !fits(value) {
        return;
    }
    let mut shape = query.shape.to_vec();
    // A header can say anything.
    let Some(outputs) = shape[0].checked_mul(3) else { return };
    shape[0] = outputs;
    let dtype = query.dtype;
    let name = format!("{block}attn.qkv.{parameter}");
    for key in &keys {
        tensors.remove(key);
    }
    let joined = deferred(name.clone(), dtype, shape.clone(), move || {
        let mut bytes = Vec::new();
        for part in &parts {
            bytes.extend_from_slice(bridge::to_data(part)?.as_bytes());
        }
        Ok(TensorData::from_bytes_vec(bytes, shape.clone(), dtype))
    });
    insert(tensors, name, joined);
}

/// The two rows of a layer scale are parameters of their own.
fn split_layer_scale(tensors: &mut Tensors, block: &str) {
    let key = format!("{block}layer_scale_parameters");
    let both = match tensors.get(&key).map(|tensor| (&tensor.shape[..], tensor.dtype)) {
        Some(([2, _], dtype)) if has_bytes(dtype) => tensors.remove(&key),
        _ => None,
    };
    let Some(both) = both else { return };
    let (dtype, channels) = (both.dtype, both.shape[1]);
    for (row, name) in ["gamma1", "gamma2"].into_iter().enumerate() {
        let name = format!("{block}{name}");
        let both = both.clone();
        let scale = deferred(name.clone(), dtype, vec![channels], move || {
            let data = bridge::to_data(&both)?;
            let bytes = channels * dtype.size();
            let row = data.as_bytes()[row * bytes..][..bytes].to_vec();
            Ok(TensorData::from_bytes_vec(row, vec![channels], dtype))
        });
        insert(tensors, name, scale);
    }
}

/// Whether each number has bytes of its own.
fn has_bytes(dtype: DType) -> bool {
    dtype.is_float()
}

fn deferred(
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    data: impl Fn() -> Result<TensorData, burn_pack::Error> + Send + Sync + 'static,
) -> burn_pack::Tensor {
    bridge::deferred(name, dtype, Shape::from(shape), None, data)
}
