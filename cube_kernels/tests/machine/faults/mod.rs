//! Faults that are put into the kernels, each of which has to be found: by a fault of the machine, a hang or a wrong result.
//!
//! A fault that is not found is either a hole of the machine or no fault. What turned out to be none is not in the tables; it is
//! said in a comment there.

mod backward;
mod blackwell_backward;
mod blackwell_forward;
mod blocks_of_rows;
mod decode;
mod forward;
mod lists;
mod selection;
mod slopes;
mod visits;

use std::fs;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;

use burn_natten_kernels::native::sm90::{Element, candidates};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use test_support::blocks::{blocks_that_all_list, own_lists};
use test_support::compare::format;
use test_support::{Data, axis, problem};

use crate::bias::check_one_slot;
use crate::blackwell::ways::{self as sm100, blackwell};
use crate::blocks;
use crate::decode::check_one as decodes;
use crate::run::{Change, Machine, Policy};
use crate::selection::check_one as selects;
use crate::slopes::{check_boxes as sums_boxes, check_one as sums_slopes};
use crate::ways::{
    MachineFault, best_of, changed, check_one_backward, check_one_forward, client, hopper,
    planned_in_teams,
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
    /// The same in the pipelines of one CTA.
    Teams,
    /// The same of vectors of 128.
    LongPlane,
    /// The same with steps of more than 128 columns, whose weights come in halves.
    Halves,
    /// Three axes with additional tokens, dilated.
    Space,
    /// One axis, with scores so far apart that sums have to be rescaled.
    Sharp,
    /// Two axes with a position bias, whose gradient is summed; several heads and samples to a CTA.
    Bias,
    /// The same with one slot for the slopes of all steps.
    OneSlot,
    /// Queries that have lists of their own, long ones of one head.
    Lists,
    /// The same of many heads, which are rows enough to come round to where the first ones were.
    HeadsOfLists,
    /// The same of four, whose blocks many list.
    Visits,
    /// Blocks of one tile, whose warpgroups share rows.
    SharedRows,
    /// Blocks that all list.
    LongLists,
    /// Slopes of a head of keys after the other, in windows of an odd number of blocks.
    Slopes,
    /// The same of boxes in planes.
    BoxesOfSlopes,
    /// One more token, of which CTAs have several steps.
    Decode,
    /// The selection of blocks: a warp has several lists.
    Selection,
    /// The same where warps share a list.
    SharedSelection,
}

impl On {
    /// That of attention.
    fn problem(self) -> Problem {
        let plane = [axis(21, 5, 1, 1, false), axis(19, 7, 1, 1, false)];
        let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
        let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2).with_batch(1);
        match self {
            Self::Line => problem(&[axis(400, 230, 1, 1, false)], 64),
            Self::LongLine => problem(&[Axis::dense(300, 300, true)], 128).with_batch(1),
            Self::Plane | Self::Teams => shared(problem(&plane, 64)),
            Self::LongPlane | Self::Halves => shared(problem(&plane, 128)),
            Self::Space => problem(&space, 64).with_additional(70),
            Self::Sharp => {
                problem(&[axis(600, 500, 1, 1, false)], 64).with_batch(1).with_scale(0.5)
            }
            // Of tiles that follow each other, the last one sees its blocks from as far as the one before, and windows of its rows lie otherwise.
            Self::Bias => shared(problem(&[plane[1], plane[0]], 32)).with_batch(3).with_bias(true),
            Self::OneSlot
            | Self::Lists
            | Self::HeadsOfLists
            | Self::Visits
            | Self::SharedRows
            | Self::LongLists
            | Self::Slopes
            | Self::BoxesOfSlopes
            | Self::Decode
            | Self::Selection
            | Self::SharedSelection => {
                unreachable!("is none of attention in a window")
            }
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

#[derive(Clone, Copy, Debug)]
enum Direction {
    Forward,
    Backward,
}

#[derive(Clone, Copy, Debug)]
enum Chip {
    Hopper,
    Blackwell,
}

impl Chip {
    fn machine(self, policy: Policy) -> Option<Machine> {
        match self {
            Self::Hopper => hopper(policy),
            Self::Blackwell => blackwell(policy),
        }
    }

    /// A pass on a machine, held to the oracle. An error says what the machine or the oracle finds.
    fn check(self, machine: &Machine, on: On, of: Direction) -> Result<(), String> {
        let (client, element) = (client(), Element::Bf16);
        let check = || match (on, of) {
            (On::OneSlot, _) => check_one_slot(machine, &client),
            (On::Lists | On::HeadsOfLists | On::Visits | On::SharedRows | On::LongLists, of) => {
                let (mut cases, number) = match on {
                    On::Lists => (own_lists(), 5),
                    On::HeadsOfLists => (own_lists(), 2),
                    On::Visits => (own_lists(), 6),
                    On::SharedRows => (blocks::named(&["three heads that share lists"]), 0),
                    _ => (blocks_that_all_list(), 0),
                };
                let case = cases.swap_remove(number);
                match of {
                    Direction::Forward => blocks::forward(machine, &client, element, &case),
                    Direction::Backward => blocks::backward(machine, &client, element, &case),
                }
            }
            (On::Slopes, _) => sums_slopes(machine, &client),
            (On::BoxesOfSlopes, _) => sums_boxes(machine, &client),
            (On::Decode, _) => decodes(machine),
            (On::Selection, _) => selects(machine, 4),
            (On::SharedSelection, _) => selects(machine, 32),
            (On::Teams | On::Halves, _) => {
                let problem = on.problem();
                let schedule = match on {
                    On::Teams => planned_in_teams(&problem, element, 4),
                    _ => {
                        best_of(candidates(&problem, element), &problem, |one| one.columns() > 128)
                    }
                };
                let data = Data::random(&problem, 3, format(element).round);
                check_one_forward(machine, &client, &problem, &schedule, &data).map(|_| ())
            }
            _ => self.check_problem(machine, &client, &on.problem(), of).map(|_| ()),
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

    /// The same of attention in a window. Gives the error relative to that of rounding.
    fn check_problem(
        self,
        machine: &Machine,
        client: &Client,
        problem: &Problem,
        of: Direction,
    ) -> Result<f64, String> {
        let element = Element::Bf16;
        let data = Data::random(problem, 3, format(element).round);
        match (self, of) {
            (Self::Hopper, Direction::Forward) => {
                let schedule = planned_in_teams(problem, element, 1);
                check_one_forward(machine, client, problem, &schedule, &data)
            }
            (Self::Hopper, Direction::Backward) => {
                check_one_backward(machine, client, problem, element, &data)
            }
            (Self::Blackwell, Direction::Forward) => {
                let schedule = sm100::planned(problem, element);
                sm100::check_one_forward(machine, client, problem, &schedule, &data)
            }
            (Self::Blackwell, Direction::Backward) => {
                let plan = sm100::planned_backward(problem, element);
                sm100::check_one_backward(machine, client, problem, &plan, &data)
            }
        }
    }

    /// How a fault was found; `None` if it was not.
    fn found(self, fault: &Fault, of: Direction) -> Option<String> {
        let machine = self.machine(fault.policy).expect("a compiler");
        let machine = changed(&machine, Change { from: fault.from, to: fault.to });
        self.check(&machine, fault.on, of).err()
    }
}

/// What the tables are worth depends on it.
#[test]
fn nothing_is_found_where_there_is_no_fault() {
    for chip in [Chip::Hopper, Chip::Blackwell] {
        let Some(machine) = chip.machine(Policy::Late) else { return };
        let shared = [On::Line, On::LongLine, On::Plane, On::LongPlane, On::Space, On::Sharp];
        let of_hopper = [
            On::Teams,
            On::Halves,
            On::Bias,
            On::OneSlot,
            On::Lists,
            On::HeadsOfLists,
            On::Visits,
            On::SharedRows,
            On::LongLists,
            On::Slopes,
            On::BoxesOfSlopes,
            On::Decode,
            On::Selection,
            On::SharedSelection,
        ];
        let more: &[_] = if matches!(chip, Chip::Hopper) { &of_hopper } else { &[] };
        for &on in shared.iter().chain(more) {
            let directions: &[_] = match on {
                // Gradients of such weights cancel, and what rounding leaves of them is no measure.
                On::Sharp => &[Direction::Forward],
                On::OneSlot | On::Slopes | On::BoxesOfSlopes => &[Direction::Backward],
                On::Teams | On::Halves | On::Decode | On::Selection | On::SharedSelection => {
                    &[Direction::Forward]
                }
                _ => &[Direction::Forward, Direction::Backward],
            };
            for &of in directions {
                chip.check(&machine, on, of)
                    .unwrap_or_else(|how| panic!("{chip:?}, {on:?}, {of:?}: {how}"));
            }
        }
    }
}

/// Looks for all of these, and prints how each was found.
fn look_for<'a>(chip: Chip, of: Direction, faults: impl IntoIterator<Item = &'a Fault>) {
    if test_support::cpp::compiler().is_none() {
        return;
    }
    let part = std::env::var("BURN_NATTEN_TEST_FAULTS").unwrap_or_default();
    let (mut count, mut missed) = (0, vec![]);
    for fault in faults.into_iter().filter(|fault| fault.name.contains(&part)) {
        count += 1;
        match chip.found(fault, of) {
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

/// One of waiting, one of order in memory, one of a descriptor, one of a fence; of Blackwell, one of a commit, and fences of tensor memory; one
/// of copies, one of each other kind of kernel.
const SAMPLE: [&str; 15] = [
    "keys are multiplied before they have arrived",
    "the producer does not wait for free rows",
    "the descriptor's stride is that of four rows",
    "the table of the mask is not fenced",
    "sm_100: values are freed while products read them",
    "sm_100: no fence behind rescaling",
    "sm_100: statistics are read before they have arrived",
    "sm_100: no fence when slopes are written",
    "shared rows: sums are added up before they are there",
    "lists: blocks are multiplied before they have arrived",
    "lists: rows are handed over while they are copied",
    "selection: scores are taken of what others still write",
    "bias: sums are added up while others still add to them",
    "decode: sums of warps are added up before they are there",
    "slopes: they are freed while products read them",
];

/// Each table, with whose faults they are.
const TABLES: [(Chip, Direction, &[Fault]); 12] = [
    (Chip::Hopper, Direction::Forward, forward::FAULTS),
    (Chip::Hopper, Direction::Backward, backward::FAULTS),
    (Chip::Blackwell, Direction::Forward, blackwell_forward::FAULTS),
    (Chip::Blackwell, Direction::Backward, blackwell_backward::FAULTS),
    (Chip::Hopper, Direction::Backward, slopes::FAULTS),
    (Chip::Hopper, Direction::Backward, blocks_of_rows::FAULTS),
    (Chip::Hopper, Direction::Forward, lists::FORWARD),
    (Chip::Hopper, Direction::Backward, lists::BACKWARD),
    (Chip::Hopper, Direction::Forward, selection::FAULTS),
    (Chip::Hopper, Direction::Forward, decode::FAULTS),
    (Chip::Hopper, Direction::Forward, visits::FORWARD),
    (Chip::Hopper, Direction::Backward, visits::BACKWARD),
];

/// The texts of all native kernels below a folder.
fn texts(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the crate's") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            self::texts(&path, texts);
        } else if path.extension().is_some_and(|of| of == "cu" || of == "cuh") {
            texts.push(fs::read_to_string(path).expect("a kernel's text"));
        }
    }
}

/// A kernel that has changed would otherwise be noticed only where all faults are looked for.
#[test]
fn kernels_have_the_text_that_faults_change() {
    let mut all = vec![];
    texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/native"), &mut all);
    let faults = TABLES.iter().flat_map(|(_, _, faults)| *faults);
    let gone: Vec<_> = faults
        .filter(|fault| !all.iter().any(|text| text.contains(fault.from)))
        .map(|fault| fault.name)
        .collect();
    assert!(gone.is_empty(), "no kernel has the text of {gone:#?}");
}

#[test]
fn a_few_faults_are_found() {
    let mut count = 0;
    for (chip, of, faults) in TABLES {
        let sampled = faults.iter().filter(|fault| SAMPLE.contains(&fault.name));
        count += sampled.clone().count();
        look_for(chip, of, sampled);
    }
    assert_eq!(count, SAMPLE.len());
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_the_forward_kernel_are_found() {
    look_for(Chip::Hopper, Direction::Forward, forward::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_the_backward_kernels_are_found() {
    look_for(Chip::Hopper, Direction::Backward, backward::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_blackwells_forward_kernel_are_found() {
    look_for(Chip::Blackwell, Direction::Forward, blackwell_forward::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_blackwells_backward_kernels_are_found() {
    look_for(Chip::Blackwell, Direction::Backward, blackwell_backward::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_lists_are_found() {
    look_for(Chip::Hopper, Direction::Backward, blocks_of_rows::FAULTS);
    look_for(Chip::Hopper, Direction::Forward, lists::FORWARD);
    look_for(Chip::Hopper, Direction::Backward, lists::BACKWARD);
    look_for(Chip::Hopper, Direction::Forward, visits::FORWARD);
    look_for(Chip::Hopper, Direction::Backward, visits::BACKWARD);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_slopes_are_found() {
    look_for(Chip::Hopper, Direction::Backward, slopes::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_the_selection_are_found() {
    look_for(Chip::Hopper, Direction::Forward, selection::FAULTS);
}

#[test]
#[ignore = "minutes"]
fn all_faults_of_decoding_are_found() {
    look_for(Chip::Hopper, Direction::Forward, decode::FAULTS);
}
