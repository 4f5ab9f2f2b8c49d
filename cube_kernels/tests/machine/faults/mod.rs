//! Faults that are put into the kernels, each of which has to be found: by a fault of the machine, a hang or a wrong result.
//!
//! A fault that is not found is either a hole of the machine or no fault. What turned out to be none is not in the tables; it is
//! said in a comment there.

mod backward;
mod forward;

use std::panic::{AssertUnwindSafe, resume_unwind};

use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::format;
use test_support::{Data, axis, problem};

use crate::run::{Change, Machine, Policy};
use crate::ways::{
    MachineFault, changed, check_one_backward, check_one_forward, client, hopper, planned,
};

/// What a fault is looked for with. CTAs have several tiles each of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// One axis, windows that are masked by position.
    Line,
    /// The same of vectors of 128.
    LongLine,
    /// Two axes, one-hot masks; two heads of queries to one of keys.
    Plane,
    /// The same of vectors of 128.
    LongPlane,
    /// Three axes with additional tokens, dilated.
    Space,
}

impl On {
    fn problem(self) -> Problem {
        let plane = [axis(21, 5, 1, 1, false), axis(19, 7, 1, 1, false)];
        let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
        let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2).with_batch(1);
        match self {
            Self::Line => problem(&[axis(400, 230, 1, 1, false)], 64),
            Self::LongLine => problem(&[Axis::dense(300, 300, true)], 128).with_batch(1),
            Self::Plane => shared(problem(&plane, 64)),
            Self::LongPlane => shared(problem(&plane, 128)),
            Self::Space => problem(&space, 64).with_additional(70),
        }
    }
}

/// A fault of one of the passes.
struct Fault {
    name: &'static str,
    on: On,
    policy: Policy,
    from: &'static str,
    to: &'static str,
}

const fn fault(name: &'static str, on: On, from: &'static str, to: &'static str) -> Fault {
    Fault { name, on, policy: Policy::Late, from, to }
}

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

/// A pass of a problem on a machine, held to the oracle. An error says what the machine or the oracle finds.
fn check(machine: &Machine, problem: &Problem, direction: Direction) -> Result<f64, String> {
    let (client, element) = (client(), Element::Bf16);
    let data = Data::random(problem, 3, format(element).round);
    let check = || match direction {
        Direction::Forward => {
            let schedule = planned(problem, element);
            check_one_forward(machine, &client, problem, &schedule, &data)
        }
        Direction::Backward => check_one_backward(machine, &client, problem, element, &data),
    };
    // Nothing of what is unwound is looked at again.
    std::panic::catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        match panic.downcast::<MachineFault>() {
            Ok(fault) => Err(fault.0),
            // Of the test, then.
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// How a fault was found; `None` if it was not.
fn found(fault: &Fault, direction: Direction) -> Option<String> {
    let machine = hopper(fault.policy).expect("a compiler");
    let machine = changed(&machine, Change { from: fault.from, to: fault.to });
    check(&machine, &fault.on.problem(), direction).err()
}

/// What the tables are worth depends on it.
#[test]
fn nothing_is_found_where_there_is_no_fault() {
    let Some(machine) = hopper(Policy::Late) else { return };
    for on in [On::Line, On::LongLine, On::Plane, On::LongPlane, On::Space] {
        for direction in [Direction::Forward, Direction::Backward] {
            check(&machine, &on.problem(), direction).unwrap_or_else(|how| panic!("{on:?}: {how}"));
        }
    }
}

/// Looks for all of these, and prints how each was found.
fn look_for<'a>(faults: impl IntoIterator<Item = &'a Fault>, direction: Direction) {
    if test_support::cpp::compiler().is_none() {
        return;
    }
    let (mut count, mut missed) = (0, vec![]);
    for fault in faults {
        count += 1;
        match found(fault, direction) {
            Some(how) => {
                let how: String = how.chars().take(230).collect();
                println!("| {} | {:?} | {} |", fault.name, fault.on, how.replace('\n', " "));
            }
            None => missed.push(format!("{}, {:?}", fault.name, fault.on)),
        }
    }
    println!("{count} faults, {} not found", missed.len());
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// One of waiting, one of order in memory, one of a descriptor, one of a fence.
const SAMPLE: [&str; 4] = [
    "keys are multiplied before they have arrived",
    "the producer does not wait for free rows",
    "the descriptor's stride is that of four rows",
    "the table of the mask is not fenced",
];

#[test]
fn a_few_faults_are_found() {
    let sampled = |fault: &&Fault| SAMPLE.contains(&fault.name);
    let (forward, backward) =
        (forward::FAULTS.iter().filter(sampled), backward::FAULTS.iter().filter(sampled));
    assert_eq!(forward.clone().count() + backward.clone().count(), SAMPLE.len());
    look_for(forward, Direction::Forward);
    look_for(backward, Direction::Backward);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_the_forward_kernel_are_found() {
    look_for(forward::FAULTS, Direction::Forward);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_the_backward_kernels_are_found() {
    look_for(backward::FAULTS, Direction::Backward);
}
