//! A tier of kernels as the tests see it that several share.

use std::cell::LazyCell;

use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;

use crate::compare::{Forward, differs, for_each_case, half_ulp, magnitude, norms};
use crate::format::Format;
use crate::oracle::{compute, compute_rounded};
use crate::{Data, Results};

/// The forward pass of a tier.
pub trait ForwardTier {
    /// What the kernels multiply.
    type Element: Copy + Into<Format> + Sync + 'static;
    const ELEMENTS: &'static [Self::Element];
    /// Those with the range of f32.
    const WIDE: &'static [Self::Element];
    const F16: Self::Element;

    /// What they multiply on a device.
    fn elements(_client: &Client) -> Vec<Self::Element> {
        Self::ELEMENTS.to_vec()
    }

    /// Output and logsumexp in every way that the tier would compute them, each with its name.
    fn computed(
        client: &Client,
        element: Self::Element,
        problem: &Problem,
        data: &Data,
    ) -> Vec<(String, Forward)>;
}

/// The gradients, by name. Those of additional tokens are there where such tokens are.
pub type Gradients = Vec<(&'static str, Vec<f64>)>;

/// A problem and how its gradients are computed.
pub type Case<T> = (Problem, <T as ForwardTier>::Element, <T as BackwardTier>::Plan);

/// The backward pass of a tier.
pub trait BackwardTier: ForwardTier {
    type Plan: Sync;

    /// The plans that would run.
    fn plans(problem: &Problem, element: Self::Element) -> Vec<Self::Plan>;

    /// Those, and some of the others: what edges are tried with.
    fn several(problem: &Problem, element: Self::Element) -> Vec<Self::Plan>;

    /// The name of each of a plan's kernels.
    fn kernels(plan: &Self::Plan) -> Vec<String>;

    fn launch(
        client: &Client,
        element: Self::Element,
        plan: &Self::Plan,
        problem: &Problem,
        saved: &Saved<Strided>,
        outputs: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError>;

    /// The names of a plan's kernels.
    fn names(plan: &Self::Plan) -> String {
        Self::kernels(plan).join(", ")
    }

    /// Runs the backward pass on tensors that lie on the device, into buffers full of NaN.
    fn gradients(
        client: &Client,
        element: Self::Element,
        plan: &Self::Plan,
        problem: &Problem,
        saved: &Saved<Strided>,
    ) -> Gradients {
        let format = element.into();
        let outputs = format.poisoned_gradients(client, problem);
        Self::launch(client, element, plan, problem, saved, &outputs).expect("launched");
        format.download_gradients(client, problem, &outputs)
    }
}

/// Holds a forward pass to at most twice the error of a result that is right but for its rounding, and
/// its logsumexp, in f32, to 1e-5. Gives the error relative to that of rounding.
pub fn check_forward(
    what: &str,
    element: impl Into<Format>,
    problem: &Problem,
    exact: &Results,
    (out, lse): &Forward,
) -> Result<f64, String> {
    let format = element.into();
    let (rms, most) = norms(out.iter().zip(&exact.out).map(|(a, e)| a - e));
    let (base_rms, base_most) = norms(exact.out.iter().map(|x| (format.round)(*x) - x));
    let base_most = base_most.max(half_ulp(format) * magnitude(&exact.out));
    // A single key gives its value back, which needs no rounding.
    let base_rms = base_rms.max(1e-9);
    if !(rms <= 2.0 * base_rms && most <= 2.0 * base_most) {
        return Err(format!(
            "{what}: out off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}; {problem:?}"
        ));
    }
    if let Some(place) = differs(lse, &exact.lse, |_, e| 1e-5 * e.abs().max(1.0)) {
        return Err(format!("{what}: logsumexp: {place}; {problem:?}"));
    }
    Ok(rms / base_rms)
}

/// Contiguous tensors on the device, with what the oracle's forward pass gives.
pub fn upload_all(
    client: &Client,
    element: impl Into<Format>,
    problem: &Problem,
    data: &Data,
    exact: &Results,
) -> Saved<Strided> {
    element.into().saved(client, problem, data, [&exact.out, &exact.lse])
}

/// The same with products of outputs and their gradients in place of outputs, which are full of NaN: see [`Saved::has_out`].
pub fn upload_products(
    client: &Client,
    element: impl Into<Format>,
    problem: &Problem,
    data: &Data,
    exact: &Results,
) -> Saved<Strided> {
    let format = element.into();
    let dim = problem.head_dim_v;
    let rows = exact.out.chunks(dim).zip(data.dout.chunks(dim)).zip(&data.dlse);
    let dlse = rows
        .map(|((out, dout), dlse)| dlse - out.iter().zip(dout).map(|(a, b)| a * b).sum::<f64>())
        .collect();
    let data = Data { dlse, ..data.clone() };
    let unread = vec![f64::NAN; exact.out.len()];
    let saved = format.saved(client, problem, &data, [&unread, &exact.lse]);
    Saved { has_out: false, ..saved }
}

/// What [`BackwardTier::gradients`] should give under a name.
pub fn expected<'a>(exact: &'a Results, name: &str) -> &'a [f64] {
    let of = exact.named().into_iter().find(|(known, _)| *known == name);
    of.unwrap_or_else(|| panic!("there is no gradient {name}")).1
}

/// [`check_data`] with random data.
pub fn check<T: BackwardTier>(
    client: &Client,
    element: T::Element,
    plan: &T::Plan,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let data = Data::random(problem, seed, element.into().round);
    check_data::<T>(client, element, plan, problem, &data)
}

/// At most twice the error of gradients that are right but for their rounding, or as near to those of slopes and weights that are
/// rounded, as products on tensor cores take them. These may be further from what is right: the errors of a sum's terms are of
/// its terms' size, and rounding itself is of the size of the sum, so that where terms cancel, as they do in a short gradient by chance, the
/// first alone are more than twice the second. Gives the largest error relative to that of rounding.
pub fn check_data<T: BackwardTier>(
    client: &Client,
    element: T::Element,
    plan: &T::Plan,
    problem: &Problem,
    data: &Data,
) -> Result<f64, String> {
    check_by::<T>(client, element, plan, problem, data, upload_all)
}

/// [`check`] of a backward pass that is given [products](upload_products).
pub fn check_products<T: BackwardTier>(
    client: &Client,
    element: T::Element,
    plan: &T::Plan,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let data = Data::random(problem, seed, element.into().round);
    check_by::<T>(client, element, plan, problem, &data, upload_products)
}

/// [`check_data`] of what an upload puts on the device.
fn check_by<T: BackwardTier>(
    client: &Client,
    element: T::Element,
    plan: &T::Plan,
    problem: &Problem,
    data: &Data,
    upload: fn(&Client, Format, &Problem, &Data, &Results) -> Saved<Strided>,
) -> Result<f64, String> {
    let format = element.into();
    let exact = compute(problem, data, format.round);
    let saved = upload(client, format, problem, data, &exact);
    let actual = T::gradients(client, element, plan, problem, &saved);
    check_gradients(&T::names(plan), format, problem, data, &exact, &actual)
}

/// What [`check_data`] compares, of gradients that `what` has computed.
pub fn check_gradients(
    what: &str,
    format: Format,
    problem: &Problem,
    data: &Data,
    exact: &Results,
    actual: &Gradients,
) -> Result<f64, String> {
    let rounded = LazyCell::new(|| compute_rounded(problem, data, format.round, format.round));
    let mut worst = 0.0f64;
    for (name, actual) in actual {
        let expected = expected(exact, name);
        let off = |from: &[f64]| norms(actual.iter().zip(from).map(|(a, e)| a - e));
        let (rms, most) = off(expected);
        let (base_rms, base_most) = norms(expected.iter().map(|x| (format.round)(*x) - x));
        let base_most = base_most.max(half_ulp(format) * magnitude(expected));
        // Gradients that cancel to nothing are measured against the terms of their sums, below 1.
        let base_rms = base_rms.max(1e-3 * half_ulp(format));
        worst = worst.max(rms / base_rms);
        let near = |(rms, most): (f64, f64)| {
            rms <= 2.0 * base_rms && most <= 2.0 * base_most.max(1e-2 * half_ulp(format))
        };
        if !(near((rms, most)) || near(off(self::expected(&rounded, name)))) {
            return Err(format!(
                "{name} off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}: {what}; {problem:?}"
            ));
        }
    }
    Ok(worst)
}

/// Runs [`check`] for every case.
pub fn check_all<T: BackwardTier>(client: &Client, cases: &[Case<T>]) {
    for_each_case(cases, |(problem, element, plan), seed| {
        check::<T>(client, *element, plan, problem, seed)
    });
}
