//! The catalogue for programs in other languages.

use std::path::Path;

use burn_natten_kernels::catalogue::{self, Entry, Milliseconds};
use burn_natten_kernels::cost::{Cost, DeviceModel};
use burn_natten_kernels::{Axis, Problem};
use serde_json::{Value, json};

/// Writes all entries as a list of objects.
pub fn write(path: &Path) -> Result<(), String> {
    let all = catalogue::all().into_iter().map(|entry| object(&entry, "all"));
    let small = catalogue::small().into_iter().map(|entry| object(&entry, "small"));
    let list = Value::Array(all.chain(small).collect());
    let text = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n")
        .map_err(|error| format!("--write-json {}: {error}", path.display()))
}

fn object(entry: &Entry, set: &str) -> Value {
    let Entry { name, problem, published, target } = entry;
    let axes: Vec<_> = problem.axes.iter().skip_while(|axis| **axis == Axis::UNIT).collect();
    let published = published.unwrap_or_default();
    json!({
        "name": name,
        "set": set,
        "batch": problem.batch,
        "heads": problem.heads,
        "heads_kv": problem.heads_kv,
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "scale": problem.scale,
        "is_dense": axes.iter().all(|axis| axis.kernel_size == axis.keys && axis.stride == 1),
        "length": axes.iter().map(|axis| axis.queries).collect::<Vec<_>>(),
        "kernel_size": axes.iter().map(|axis| axis.kernel_size).collect::<Vec<_>>(),
        "stride": axes.iter().map(|axis| axis.stride).collect::<Vec<_>>(),
        "dilation": axes.iter().map(|axis| axis.dilation).collect::<Vec<_>>(),
        "is_causal": axes.iter().map(|axis| axis.is_causal).collect::<Vec<_>>(),
        "pairs": problem.pairs(),
        "forward": pass(problem, Cost::forward),
        "backward": pass(problem, Cost::backward),
        "published": {
            "cudnn": milliseconds(published.cudnn),
            "natten": milliseconds(published.natten),
            "flex": milliseconds(published.flex),
        },
        "target": milliseconds(*target),
    })
}

type CostOf =
    fn(&Problem, Option<&burn_natten_kernels::tiling::Tiling>, usize, &DeviceModel) -> Cost;

/// Operations, and bytes by the size of an element.
fn pass(problem: &Problem, cost: CostOf) -> Value {
    let [half, single] = [2, 4].map(|size| cost(problem, None, size, &DeviceModel::H200));
    json!({ "flops": half.flops, "bytes": { "2": half.bytes, "4": single.bytes } })
}

fn milliseconds(times: Option<Milliseconds>) -> Value {
    times.map_or(Value::Null, |times| json!([times.forward, times.backward]))
}
