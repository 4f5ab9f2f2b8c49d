//! The portable kernels on a device, from and to `f64` vectors.

use burn_natten_kernels::portable::{
    BackwardPlan, Way, backward, backward_with, forward, forward_with,
};
use burn_natten_kernels::{Outputs, Problem, Saved, Shape, Strided};
use cubecl::client::Client;

use crate::format::Format;
use crate::{Data, Results};

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
    let elem = format.elem();
    let outputs = format.poisoned_outputs(client, problem);
    let inputs = format.operands(client, problem, data);
    match kernels {
        None => forward(client, problem, elem, true, &inputs, &outputs),
        Some(by) => forward_with(client, &by.forward, problem, elem, &inputs, &outputs),
    }
    .expect("forward is launched");
    let (out, lse) = format.download_outputs(client, problem, &outputs);
    let saved = Saved {
        operands: inputs,
        outputs: Outputs {
            out: Strided::contiguous(outputs.out, Shape::out(problem)),
            lse: Strided::contiguous(outputs.lse, Shape::lse(problem)),
        },
        gradients: format.saved(client, problem, data, [&out, &lse]).gradients,
        has_out: true,
    };
    let gradients = format.poisoned_gradients(client, problem);
    match kernels {
        None => backward(client, problem, elem, true, &saved, &gradients),
        Some(by) => backward_with(client, &by.backward, problem, elem, &saved, &gradients),
    }
    .expect("backward is launched");
    let mut all = format.download_gradients(client, problem, &gradients);
    let mut take = |name| match all.iter().position(|(known, _)| *known == name) {
        Some(at) => all.swap_remove(at).1,
        None => Vec::new(),
    };
    Results {
        out,
        lse,
        dq: take("dq"),
        dk: take("dk"),
        dv: take("dv"),
        additional_dk: take("additional dk"),
        additional_dv: take("additional dv"),
        dbias: take("dbias"),
    }
}
