//! What [`capture`] records gives what the operators give, of whatever the inputs then hold.

use std::cell::RefCell;

use burn::tensor::{DType, Device, Distribution, Tensor, capture};
use burn_natten::{AttentionOptions, NeighborhoodOptions, Strategy, attention, na1d, na2d, na3d};
use test_support::alone::alone;

use crate::support::check::close;
use crate::support::run::values;
use crate::support::{TestDevice, quick_devices};

type Inputs<const D: usize> = [Tensor<D>; 3];

/// `operator` from a graph, where the device has such, and by itself.
fn check<const D: usize>(
    (what, device): (&str, &TestDevice),
    dtype: DType,
    shape: [usize; D],
    operator: impl Fn(Inputs<D>) -> Tensor<D>,
) {
    let place: &Device = &device.device;
    let random = || Tensor::random(shape, Distribution::Normal(0.0, 1.0), (place, dtype));
    let inputs = RefCell::new([(); 3].map(|()| random()));
    let mut graph = capture(place, || operator(inputs.borrow().clone()));
    assert!(graph.is_hardware() || device.name != "cuda", "{what}");
    for factor in [1.0, 0.5, -2.0] {
        // In the memory that the graph reads.
        inputs.borrow_mut().iter_mut().for_each(|input| input.inplace(|input| input * factor));
        // SAFETY: the inputs are alive, and of this thread alone.
        let replayed = values(unsafe { graph.replay() }.clone());
        let expected = values(operator(inputs.borrow().clone()));
        close(what, &replayed, &expected, 0.0);
    }
}

fn check_all(device: &TestDevice, dtype: DType, strategy: Strategy) {
    let what = format!("{}, {dtype:?}, {strategy:?}", device.name);
    let with = (what.as_str(), device);
    let options = NeighborhoodOptions::<1>::new(9).with_causal(true).with_strategy(strategy);
    check(with, dtype, [2, 70, 4, 32], |[q, k, v]| na1d(q, k, v, options.clone()));
    let options = NeighborhoodOptions::<2>::new(5).with_strategy(strategy);
    check(with, dtype, [1, 12, 17, 4, 32], |[q, k, v]| na2d(q, k, v, options.clone()));
    let options = NeighborhoodOptions::<3>::new(3).with_dilation(2).with_strategy(strategy);
    check(with, dtype, [1, 6, 7, 9, 2, 16], |[q, k, v]| na3d(q, k, v, options.clone()));
    let options = AttentionOptions::new().with_causal(true).with_strategy(strategy);
    check(with, dtype, [2, 150, 2, 64], |[q, k, v]| attention(q, k, v, options.clone()));
}

/// In a process of its own: whatever another thread allocates ends a recording.
#[test]
fn replays_compute_what_inputs_hold() {
    alone("suite::graphs::replays_compute_what_inputs_hold", || {
        for device in quick_devices() {
            check_all(&device, DType::F32, Strategy::Auto);
            if device.name == "cuda" {
                for strategy in device.half_strategies() {
                    check_all(&device, DType::BF16, strategy);
                }
            }
        }
    });
}
