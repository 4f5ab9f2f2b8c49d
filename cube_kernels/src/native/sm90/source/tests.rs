//! The generated text, without a compiler.

use std::collections::BTreeSet;

use super::*;
use crate::native::sm90::{Element, Mask, backward_candidates, candidates, plan_backward};
use crate::{Axis, MAX_RANK, Problem};

/// Of both passes.
fn schedules() -> Vec<Schedule> {
    let axis = Axis::neighborhood(40, 9);
    let mut schedules = vec![];
    for (head_dim, head_dim_v) in [(8, 8), (64, 40), (128, 128), (256, 8), (8, 256)] {
        for rank in 1..=MAX_RANK {
            let axes = [axis; MAX_RANK];
            let problem = Problem::new(&axes[..rank], 1, head_dim).with_head_dim_v(head_dim_v);
            let element = Element::F16;
            // The tiles do not matter here.
            schedules.extend(candidates(&problem, element).into_iter().step_by(29));
            let plan = plan_backward(&problem, element, None).expect("supported");
            for Schedule { pass, gradients, .. } in plan.schedules().copied() {
                let all = backward_candidates(&problem, element, pass, gradients);
                schedules.extend(all.into_iter().step_by(29));
            }
        }
    }
    let line = Problem::new([Axis::dense(300, 300, true)], 1, 128);
    let plan = plan_backward(&line, Element::Bf16, None).expect("supported");
    let by_slopes = plan.without_slopes().with_slopes(&line, 1).expect("whole blocks");
    schedules.extend(by_slopes.schedules().copied());
    schedules
}

/// The value of a macro without parameters.
fn define(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn masks_are_numbered_as_in_the_kernel() {
    let [none, linear, one_hot, by_item] =
        [Mask::None, Mask::Linear, Mask::OneHot, Mask::ByItem].map(|mask| mask as usize);
    let line = format!(
        "enum {{ NONE = {none}, LINEAR = {linear}, ONE_HOT = {one_hot}, BY_ITEM = {by_item} }};\n"
    );
    assert!(include_str!("../cuda/mask.cuh").contains(&line), "{line}");
}

#[test]
fn every_macro_is_defined_once_and_used() {
    let check = |source: &str, name: &str, value: usize| {
        let start = format!("#define {name} ");
        let defines = source.lines().filter(|line| line.starts_with(&start)).count();
        assert_eq!(defines, 1, "{name}");
        assert_eq!(define(source, name), Some(value));
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let uses = source.split(|c| !is_part(c)).filter(|word| *word == name).count();
        assert!(uses > 1, "{name} is not used");
    };
    for schedule in schedules() {
        let source = schedule.source();
        for (name, value) in schedule.macros() {
            check(&source, name, value);
        }
    }
    for (head_dim_v, lanes) in [(0, 1), (8, 1), (24, 4), (64, 8), (136, 32), (256, 32)] {
        for (element, is_bf16) in [(Element::F16, 0), (Element::Bf16, 1)] {
            let (_, source) = delta_source(element, head_dim_v, false);
            for (name, value) in [("BF16", is_bf16), ("DIM_V", head_dim_v), ("LANES", lanes)] {
                check(&source, name, value);
            }
        }
    }
}

/// The numbers that follow a `%`.
fn operands(text: &str) -> BTreeSet<usize> {
    text.split('%')
        .skip(1)
        .filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect()
}

/// Accumulators between the braces behind the instruction, and a constraint for every operand.
#[test]
fn wgmma_has_the_operands_of_its_shape() {
    for schedule in schedules() {
        let text = schedule.wgmma();
        let functions: Vec<&str> = text.split("DEVICE void ").skip(1).collect();
        let keys = schedule.blocks * schedule.column_tile().iter().product::<usize>();
        let element = schedule.element.name();
        let half = &format!("k16.f32.{element}.{element}")[..];
        let mut expected = match schedule.sums_slopes() {
            true => vec![],
            false => vec![("wgmma_scores", keys, half), ("wgmma_mask", keys, "k32.f32.e5m2.e5m2")],
        };
        let Gradients { width, value, .. } = schedule.gradients;
        expected.extend((width > 0).then_some(("wgmma_first", width, half)));
        expected.extend(value.then_some(("wgmma_second", schedule.head_dim_v, half)));
        if schedule.pass == Pass::Forward {
            expected.push(("wgmma_values", schedule.head_dim_v, half));
        }
        assert_eq!(functions.len(), expected.len());
        for (function, (name, n, types)) in functions.into_iter().zip(expected) {
            assert!(function.starts_with(&format!("{name}(float (&d)[{}]", n / 2)), "{function}");
            let (_, instruction) = function.split_once("wgmma.mma_async").expect("an instruction");
            let shape = format!(".sync.aligned.m64n{n}{types} {{");
            let rest = instruction.strip_prefix(&shape).expect("the shape");
            let (accumulators, _) = rest.split_once('}').expect("accumulators");
            assert_eq!(accumulators.split(", ").count(), n / 2, "{function}");
            let constraints = ["\"+f\"(", "\"r\"(", "\"l\"("];
            let counts = constraints.map(|constraint| function.matches(constraint).count());
            assert_eq!(counts[0], n / 2, "{function}");
            let all = (0..counts.iter().sum()).collect();
            assert_eq!(operands(function), all, "{function}");
        }
    }
}
