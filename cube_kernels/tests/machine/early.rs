//! Launches of a backward pass that begin before the one ahead of them ends, and their counters, which are zero whatever memory they are in.

use std::cell::RefCell;
use std::rc::Rc;

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{BackwardPlan, Element, backward_with};
use burn_natten_kernels::native::stand_in::Launch;
use cubecl::client::Client;
use cubecl_common::bytes::Bytes;
use test_support::compare::format;
use test_support::oracle::compute;
use test_support::tier::{Gradients, upload_all};
use test_support::{Data, axis, problem};

use crate::run::{Change, Machine, Policy};
use crate::ways::{changed, client, hopper, planned_backward};

const ELEMENT: Element = Element::Bf16;
/// Which of the buffers of a kernel has its counters.
const TAKEN: usize = 7;

/// Of all gradients, with `watch` looking on.
fn gradients(
    machine: &Machine,
    plan: &BackwardPlan,
    (problem, data): (&Problem, &Data),
    watch: impl Fn(&Client, &Launch) + 'static,
) -> Result<Gradients, String> {
    let (client, format) = (client(), format(ELEMENT));
    let exact = compute(problem, data, |x| x);
    let saved = upload_all(&client, ELEMENT, problem, data, &exact);
    let outputs = format.poisoned_gradients(&client, problem);
    machine
        .watched(watch, || backward_with(&client, plan, problem, &saved, &outputs))?
        .map_err(|error| error.to_string())?;
    Ok(format.download_gradients(&client, problem, &outputs))
}

/// Of a plan's kernels for attention, in order.
#[derive(Debug, PartialEq)]
struct Seen {
    is_early: bool,
    /// Bytes of counters that are cleared ahead of it.
    cleared: u64,
    /// Where its own begin.
    counters: u64,
}

/// Gradients of memory whose counters are not zero, and all kernels that summed them.
fn seen(machine: &Machine, plan: &BackwardPlan, of: (&Problem, &Data)) -> (Gradients, Vec<Seen>) {
    let all = Rc::new(RefCell::new(vec![]));
    let watched = all.clone();
    let watch = move |client: &Client, launch: &Launch| {
        if launch.kernel.entry != c"attention_backward" {
            return;
        }
        let taken = &launch.buffers[TAKEN];
        let binding = taken.handle.clone().binding();
        // Tiles behind the last one.
        if taken.is_cleared {
            let bytes = vec![0x7f; binding.size_in_used() as usize];
            client.write(&taken.handle, Bytes::from_bytes_vec(bytes));
        }
        watched.borrow_mut().push(Seen {
            is_early: launch.is_early,
            cleared: if taken.is_cleared { binding.size_in_used() } else { 0 },
            counters: binding.offset_start.unwrap_or(0),
        });
    };
    let gradients = gradients(machine, plan, of, watch).unwrap_or_else(|fault| panic!("{fault}"));
    (gradients, all.take())
}

/// A launch of each kind, and one for each of several dilation groups; heads that share keys, and sums of them.
#[test]
fn kernels_for_keys_begin_early() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let plane = [axis(21, 5, 1, 1, false), axis(19, 7, 1, 1, false)];
    let plane = problem(&plane, 64).with_heads(4).with_heads_kv(2).with_batch(1);
    let groups = problem(&[axis(77, 5, 1, 11, false)], 64).with_batch(1);
    for (problem, splits, of_keys) in [(plane, 1, 1), (plane, 2, 1), (groups, 1, 11)] {
        let mut plan = planned_backward(&problem, ELEMENT);
        plan.keys.iter_mut().for_each(|schedule| schedule.splits = splits);
        let data = Data::random(&problem, 5, format(ELEMENT).round);
        let of = (&problem, &data);
        let (own, launches) = seen(&machine, &plan, of);
        let count = 2 * of_keys;
        let bytes = launches[1].counters;
        let expected = |number: u64| Seen {
            is_early: number >= of_keys,
            cleared: if number == 0 { count * bytes } else { 0 },
            counters: number * bytes,
        };
        assert_eq!(launches, (0..count).map(expected).collect::<Vec<_>>());

        // Counters of launches that have the statistics from another kernel are its business.
        let (others, launches) = seen(&machine, &plan.without_own_statistics(), of);
        assert!(launches.iter().all(|seen| !seen.is_early && seen.cleared == 0), "{launches:?}");
        assert!(own == others, "{problem:?}");
    }
}

/// Rows of keys that are computed again read statistics, each thread by itself.
#[test]
fn consumers_that_do_not_wait_are_found() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let problem = problem(&[axis(90, 9, 1, 1, true)], 64);
    let mut data = Data::random(&problem, 7, format(ELEMENT).round);
    data.dout[5] = f64::INFINITY;
    let plan = planned_backward(&problem, ELEMENT);
    let found = |machine: &Machine| gradients(machine, &plan, (&problem, &data), |_, _| ()).err();
    assert_eq!(found(&machine), None);
    let from = "    if constexpr (INVERSE && !LISTED) wait_for_launch_ahead();\n";
    let fault = found(&changed(&machine, Change { from, to: "" })).unwrap_or_default();
    assert!(fault.contains("has not waited"), "{fault}");
}
