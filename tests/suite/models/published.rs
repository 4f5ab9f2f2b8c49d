//! The published sizes have the keys, shapes and numbers of parameters of the originals.

use std::collections::BTreeMap;
use std::io::Read;

use burn::tensor::Device;
use burn_natten::models::Weights;
use burn_natten::models::dinat_s::DinatSConfig;
use burn_natten::models::isotropic::IsotropicConfig;
use burn_natten::models::nat::NatConfig;
use serde::Deserialize;

/// A published model.
#[derive(Deserialize)]
struct Published {
    parameters: usize,
    embed_dim: usize,
    mlp_ratio: f64,
    depths: Vec<usize>,
    num_heads: Vec<usize>,
    kernel_size: usize,
    dilations: Vec<Vec<usize>>,
    layer_scale: bool,
    drop_path_rate: f64,
    /// Keys and shapes; without them those of another model.
    keys: Option<BTreeMap<String, Vec<usize>>>,
    keys_as: Option<String>,
}

fn published() -> BTreeMap<String, Published> {
    let packed = include_bytes!("../../golden/models/published.json.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).expect("is packed");
    serde_json::from_str(&text).expect("is as described")
}

#[test]
fn keys_shapes_and_numbers_are_those_of_the_originals() {
    let published = published();
    let mut seen = 0;
    for (name, config) in NatConfig::published() {
        check(&published, name, &config.init(&Device::flex()));
        let original = &published[name];
        assert_eq!(config.embed_dim, original.embed_dim, "{name}");
        assert_eq!(config.mlp_ratio, original.mlp_ratio, "{name}");
        assert_eq!(config.depths, original.depths, "{name}");
        assert_eq!(config.num_heads, original.num_heads, "{name}");
        assert_eq!(config.kernel_size, original.kernel_size, "{name}");
        let ones = || original.depths.iter().map(|&depth| vec![1; depth]).collect();
        assert_eq!(config.dilations.unwrap_or_else(ones), original.dilations, "{name}");
        assert_eq!(config.layer_scale.is_some(), original.layer_scale, "{name}");
        assert_eq!(config.drop_path_rate, original.drop_path_rate, "{name}");
        seen += 1;
    }
    for (name, config) in DinatSConfig::published() {
        check(&published, name, &config.init(&Device::flex()));
        let original = &published[name];
        assert_eq!(config.dilations.as_ref(), Some(&original.dilations), "{name}");
        assert_eq!(config.num_heads, original.num_heads, "{name}");
        assert_eq!(config.drop_path_rate, original.drop_path_rate, "{name}");
        seen += 1;
    }
    for (name, config) in IsotropicConfig::published() {
        let model = config.init(&Device::flex());
        check(&published, name, &model);
        let original = &published[name];
        let dilations: Vec<_> = model.layers.iter().map(|block| block.attn.dilation).collect();
        assert_eq!(vec![dilations], original.dilations, "{name}");
        assert_eq!(vec![config.num_heads], original.num_heads, "{name}");
        assert_eq!(config.drop_path_rate, original.drop_path_rate, "{name}");
        seen += 1;
    }
    assert_eq!(seen, published.len());
}

fn check<M: Weights>(published: &BTreeMap<String, Published>, name: &str, model: &M) {
    let original = &published[name];
    let shapes = model.weight_shapes();
    let parameters: usize = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    assert_eq!(parameters, original.parameters, "{name}");

    let keys_as = original.keys_as.as_deref().unwrap_or(name);
    let expected = published[keys_as].keys.as_ref().expect("a model with keys");
    let got: BTreeMap<_, _> = shapes.iter().cloned().collect();
    assert_eq!(shapes.len(), got.len(), "{name}: a key is there twice");
    assert!(got == *expected, "{name}: keys and shapes differ");
}
