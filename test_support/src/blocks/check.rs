//! Passes in half types held to what is right: at most twice the error of results that are right but for their rounding.

use burn_natten_kernels::{BlockSparse, KernelError, Operands, Outputs, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Layout, compute, operands, saved, upload_lists};
use crate::Data;
use crate::compare::{differs, half_ulp, magnitude, norms};
use crate::format::Format;

/// A problem with its lists, and how its tensors lie.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub sparse: BlockSparse,
    pub lists: Vec<i32>,
    pub layout: Layout,
    pub seed: u64,
}

fn off_by(name: &str, format: Format, actual: &[f64], exact: &[f64]) -> Result<(), String> {
    let (rms, most) = norms(actual.iter().zip(exact).map(|(a, e)| a - e));
    let (base_rms, base_most) = norms(exact.iter().map(|x| (format.round)(*x) - x));
    let ulp = half_ulp(format);
    let base_most = base_most.max(ulp * magnitude(exact)).max(1e-2 * ulp);
    // What cancels to nothing is measured against the terms of its sum, below 1.
    let base_rms = base_rms.max(1e-3 * ulp);
    if rms <= 2.0 * base_rms && most <= 2.0 * base_most {
        return Ok(());
    }
    let worst = actual
        .iter()
        .zip(exact)
        .enumerate()
        .find(|(_, (a, e))| (**a - **e).abs() > 2.0 * base_most || a.is_nan());
    Err(format!(
        "{name} off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}, first {worst:?}"
    ))
}

impl Case {
    fn named(&self, result: Result<(), String>) -> Result<(), String> {
        result.map_err(|text| format!("{}: {text}; {:?} {:?}", self.name, self.sparse, self.layout))
    }

    /// The forward pass, into poisoned buffers.
    pub fn check_forward(
        &self,
        client: &Client,
        element: impl Into<Format>,
        launch: impl FnOnce(&Operands<Strided>, &Handle, &Outputs<Handle>) -> Result<(), KernelError>,
    ) -> Result<(), String> {
        let (format, sparse) = (element.into(), &self.sparse);
        let data = Data::random(&sparse.problem, self.seed, format.round);
        let exact = compute(sparse, &self.lists, &data, |x| x);
        let inputs = operands(client, format, sparse, &data, self.layout);
        let outputs = format.poisoned_outputs(client, &sparse.problem);
        launch(&inputs, &upload_lists(client, &self.lists), &outputs)
            .map_err(|e| format!("{}: {e}", self.name))?;
        let (out, lse) = format.download_outputs(client, &sparse.problem, &outputs);
        let lse = match differs(&lse, &exact.lse, |_, e| 1e-5 * e.abs().max(1.0)) {
            Some(place) => Err(format!("logsumexp: {place}")),
            None => Ok(()),
        };
        self.named(lse.and_then(|()| off_by("out", format, &out, &exact.out)))
    }

    /// The backward pass, into poisoned buffers.
    pub fn check_backward(
        &self,
        client: &Client,
        element: impl Into<Format>,
        launch: impl FnOnce(
            &Saved<Strided>,
            &Handle,
            &Operands<Option<Handle>>,
        ) -> Result<(), KernelError>,
    ) -> Result<(), String> {
        let (format, sparse) = (element.into(), &self.sparse);
        let data = Data::random(&sparse.problem, self.seed, format.round);
        let exact = compute(sparse, &self.lists, &data, format.round);
        let saved = saved(client, format, sparse, &data, [&exact.out, &exact.lse], self.layout);
        let gradients = format.poisoned_gradients(client, &sparse.problem);
        launch(&saved, &upload_lists(client, &self.lists), &gradients)
            .map_err(|e| format!("{}: {e}", self.name))?;
        let all = format.download_gradients(client, &sparse.problem, &gradients);
        let result = all
            .iter()
            .zip(&exact.named()[2..])
            .try_for_each(|((_, actual), (name, exact))| off_by(name, format, actual, exact));
        self.named(result)
    }
}
