//! The same bits every time, whatever else the device does.

use burn_natten_kernels::native::sm90::{BackwardPlan, Element};
use burn_natten_kernels::{Problem, Saved, Strided};
use cubecl::client::Client;
use test_support::compare::{device, format};
use test_support::oracle::compute;
use test_support::problems::repeated;
use test_support::tier::{BackwardTier, Gradients, upload_all};
use test_support::{Data, Results};

use super::run::planned;
use crate::repeat::RUNS;
use crate::ways::Native;

const ELEMENT: Element = Element::Bf16;

fn bits(gradients: &Gradients) -> Vec<u64> {
    gradients.iter().flat_map(|(_, values)| values).map(|x| x.to_bits()).collect()
}

/// A problem with all that its runs read.
struct Prepared {
    problem: Problem,
    plan: BackwardPlan,
    data: Data,
    exact: Results,
}

impl Prepared {
    fn new(problem: Problem) -> Self {
        let data = Data::random(&problem, 3, format(ELEMENT).round);
        let exact = compute(&problem, &data, format(ELEMENT).round);
        Self { plan: planned(&problem, ELEMENT), problem, data, exact }
    }

    fn upload(&self, client: &Client) -> Saved<Strided> {
        upload_all(client, ELEMENT, &self.problem, &self.data, &self.exact)
    }

    fn bits(&self, client: &Client, inputs: &Saved<Strided>) -> Vec<u64> {
        bits(&Native::gradients(client, ELEMENT, &self.plan, &self.problem, inputs))
    }
}

#[test]
fn twenty_runs() {
    let Some(client) = device() else { return };
    for prepared in repeated().into_iter().map(Prepared::new) {
        let inputs = prepared.upload(&client);
        let first = prepared.bits(&client, &inputs);
        for run in 1..RUNS {
            let again = prepared.bits(&client, &inputs);
            assert!(again == first, "{}: run {run} differs", Native::names(&prepared.plan));
        }
    }
}

/// Every thread has a CubeCL stream of its own; the tensors of one are read on both.
#[test]
fn two_streams() {
    let Some(client) = device() else { return };
    for prepared in repeated().into_iter().step_by(3).map(Prepared::new) {
        let inputs = prepared.upload(&client);
        let first = prepared.bits(&client, &inputs);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let own = prepared.upload(&client);
                    for run in 0..RUNS {
                        let inputs = if run % 2 == 0 { &inputs } else { &own };
                        let again = prepared.bits(&client, inputs);
                        assert!(
                            again == first,
                            "{}: run {run} differs",
                            Native::names(&prepared.plan)
                        );
                    }
                });
            }
        });
    }
}
