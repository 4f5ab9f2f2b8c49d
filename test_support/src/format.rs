//! Element types: tensors of a device from and to `f64` vectors.

use burn_natten_kernels::{Operand, Operands, Outputs, Problem, Saved, Shape, Strided};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use half::{bf16, f16};

use crate::Data;

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

/// The tensors of a problem on a device, from and to `f64` vectors.
impl Format {
    fn strided(&self, client: &Client, values: &[f64], shape: Shape) -> Strided {
        // Empty buffers cannot be bound.
        let values = if values.is_empty() { &[0.0] } else { values };
        Strided::contiguous(self.upload(client, values), shape)
    }

    /// Contiguous operands.
    pub fn operands(&self, client: &Client, problem: &Problem, data: &Data) -> Operands<Strided> {
        data.operands(problem).map(|operand, values| Strided {
            strides: operand.strides(problem),
            ..self.strided(client, values, operand.shape(problem))
        })
    }

    /// Contiguous tensors of a backward pass, with these results of the forward pass.
    pub fn saved(
        &self,
        client: &Client,
        problem: &Problem,
        data: &Data,
        results: [&[f64]; 2],
    ) -> Saved<Strided> {
        let pair = |[out, lse]: [&[f64]; 2]| Outputs {
            out: self.strided(client, out, Shape::out(problem)),
            lse: F32.strided(client, lse, Shape::lse(problem)),
        };
        Saved {
            operands: self.operands(client, problem, data),
            outputs: pair(results),
            gradients: pair([&data.dout, &data.dlse]),
            has_out: true,
        }
    }

    /// Results full of NaN.
    pub fn poisoned_outputs(&self, client: &Client, problem: &Problem) -> Outputs<Handle> {
        Outputs {
            out: self.poisoned(client, Shape::out(problem).elements()),
            lse: F32.poisoned(client, Shape::lse(problem).elements()),
        }
    }

    /// Gradients full of NaN.
    pub fn poisoned_gradients(
        &self,
        client: &Client,
        problem: &Problem,
    ) -> Operands<Option<Handle>> {
        let poisoned =
            |operand: Operand| Some(self.poisoned(client, operand.shape(problem).elements()));
        Operands::of(problem).map(|operand, ()| poisoned(operand))
    }

    /// Output and logsumexp.
    pub fn download_outputs(
        &self,
        client: &Client,
        problem: &Problem,
        outputs: &Outputs<Handle>,
    ) -> (Vec<f64>, Vec<f64>) {
        let (out, lse) = (Shape::out(problem).elements(), Shape::lse(problem).elements());
        (self.download(client, &outputs.out, out), F32.download(client, &outputs.lse, lse))
    }

    /// The gradients that there are, by name.
    pub fn download_gradients(
        &self,
        client: &Client,
        problem: &Problem,
        gradients: &Operands<Option<Handle>>,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let download = |(operand, handle): (Operand, &Option<Handle>)| {
            let handle = handle.as_ref()?;
            let values = self.download(client, handle, operand.shape(problem).elements());
            Some((operand.gradient_name(), values))
        };
        gradients.iter().filter_map(download).collect()
    }
}

impl Data {
    fn operands(&self, problem: &Problem) -> Operands<&[f64]> {
        Operands::of(problem).map(|operand, ()| match operand {
            Operand::Query => self.query.as_slice(),
            Operand::Key => &self.key,
            Operand::Value => &self.value,
            Operand::AdditionalKey => &self.additional_key,
            Operand::AdditionalValue => &self.additional_value,
            Operand::Bias => &self.bias,
        })
    }
}
