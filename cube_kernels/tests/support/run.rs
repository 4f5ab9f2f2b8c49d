//! The kernels on a device, from and to `f64` vectors.

use super::{Data, Results};
use burn_natten_kernels::Problem;
use burn_natten_kernels::portable::{
    BackwardInputs, BackwardOutputs, BackwardPlan, ForwardInputs, ForwardOutputs, KeyValue, Way,
    backward, backward_with, forward, forward_with,
};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use half::{bf16, f16};

/// The device under test: `BURN_NATTEN_DEVICE` is `cpu` (the default), `cuda` or `wgpu`, and the
/// matching feature of cubecl has to be on.
pub fn client() -> Client {
    let name = std::env::var("BURN_NATTEN_DEVICE").unwrap_or_else(|_| "cpu".into());
    let device = match name.as_str() {
        "cpu" => cubecl::Device::cpu(),
        "cuda" => cubecl::Device::cuda(0),
        "wgpu" => cubecl::Device::wgpu(Default::default()),
        _ => panic!("BURN_NATTEN_DEVICE={name} is none of cpu, cuda, wgpu"),
    };
    match device {
        Ok(device) => device.client(),
        Err(error) => panic!("no {name} device: {error:?}"),
    }
}

/// An element type and its rounding.
#[derive(Clone, Copy)]
pub struct Format {
    pub kind: FloatKind,
    pub round: fn(f64) -> f64,
}

pub const F32: Format = Format { kind: FloatKind::F32, round: |x| f64::from(x as f32) };
pub const F16: Format = Format { kind: FloatKind::F16, round: |x| f16::from_f64(x).to_f64() };
pub const BF16: Format = Format { kind: FloatKind::BF16, round: |x| bf16::from_f64(x).to_f64() };

impl Format {
    pub fn elem(&self) -> ElemType {
        ElemType::Float(self.kind)
    }

    pub fn upload(&self, client: &Client, values: &[f64]) -> Handle {
        let bytes: Vec<u8> = match self.kind {
            FloatKind::F16 => bytes(values, |x| f16::from_f64(x).to_le_bytes()),
            FloatKind::BF16 => bytes(values, |x| bf16::from_f64(x).to_le_bytes()),
            _ => bytes(values, |x| (x as f32).to_le_bytes()),
        };
        client.create_from_slice(&bytes)
    }

    /// A buffer full of NaN, so that nothing passes by luck.
    pub fn poisoned(&self, client: &Client, length: usize) -> Handle {
        self.upload(client, &vec![f64::NAN; length.max(1)])
    }

    pub fn download(&self, client: &Client, handle: &Handle, length: usize) -> Vec<f64> {
        let bytes = client.read_one(handle.clone()).expect("the kernels ran");
        let values = match self.kind {
            FloatKind::F16 => values(&bytes, |b| f16::from_le_bytes(b).to_f64()),
            FloatKind::BF16 => values(&bytes, |b| bf16::from_le_bytes(b).to_f64()),
            _ => values(&bytes, |b| f64::from(f32::from_le_bytes(b))),
        };
        values[..length].to_vec()
    }
}

fn bytes<const N: usize>(values: &[f64], convert: fn(f64) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|x| convert(*x)).collect()
}

fn values<const N: usize>(bytes: &[u8], convert: fn([u8; N]) -> f64) -> Vec<f64> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|chunk| convert(*chunk)).collect()
}

/// Kernels of both passes.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    pub forward: Way,
    pub backward: BackwardPlan,
}

impl Kernels {
    /// A row, or a slice of one, a unit.
    pub const ROWS: Self = Self { forward: Way::Rows, backward: BackwardPlan::ROWS };
}

/// Runs both passes as they are planned into poisoned buffers.
pub fn run(client: &Client, problem: &Problem, data: &Data, format: Format) -> Results {
    run_by(client, problem, data, format, None)
}

/// Runs both passes by these kernels into poisoned buffers.
pub fn run_by(
    client: &Client,
    problem: &Problem,
    data: &Data,
    format: Format,
    kernels: Option<&Kernels>,
) -> Results {
    let upload = |values: &[f64]| format.upload(client, values);
    let poisoned = |values: &[f64]| format.poisoned(client, values.len());
    let pair =
        |key: Handle, value: Handle| (problem.additional > 0).then_some(KeyValue { key, value });
    let inputs = ForwardInputs {
        query: upload(&data.query),
        key: upload(&data.key),
        value: upload(&data.value),
        additional: pair(upload(&data.additional_key), upload(&data.additional_value)),
    };
    let outputs =
        ForwardOutputs { out: poisoned(&data.dout), lse: F32.poisoned(client, data.dlse.len()) };
    let elem = format.elem();
    match kernels {
        None => forward(client, problem, elem, true, &inputs, &outputs),
        Some(by) => forward_with(client, &by.forward, problem, elem, &inputs, &outputs),
    }
    .expect("forward is launched");
    let backward_inputs = BackwardInputs {
        query: inputs.query,
        key: inputs.key,
        value: inputs.value,
        additional: inputs.additional,
        out: outputs.out.clone(),
        lse: outputs.lse.clone(),
        dout: upload(&data.dout),
        dlse: F32.upload(client, &data.dlse),
    };
    let (dk, dv) = (poisoned(&data.additional_key), poisoned(&data.additional_value));
    let gradients = BackwardOutputs {
        dq: poisoned(&data.query),
        dk: poisoned(&data.key),
        dv: poisoned(&data.value),
        additional: pair(dk.clone(), dv.clone()),
    };
    match kernels {
        None => backward(client, problem, elem, true, &backward_inputs, &gradients),
        Some(by) => {
            backward_with(client, &by.backward, problem, elem, &backward_inputs, &gradients)
        }
    }
    .expect("backward is launched");
    let download = |handle: &Handle, like: &[f64]| format.download(client, handle, like.len());
    Results {
        out: download(&outputs.out, &data.dout),
        lse: F32.download(client, &outputs.lse, data.dlse.len()),
        dq: download(&gradients.dq, &data.query),
        dk: download(&gradients.dk, &data.key),
        dv: download(&gradients.dv, &data.value),
        additional_dk: download(&dk, &data.additional_key),
        additional_dv: download(&dv, &data.additional_value),
    }
}
