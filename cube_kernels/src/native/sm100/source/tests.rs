//! The generated text, without a compiler.

use super::*;
use crate::native::sm100::{plan, plan_backward};
use crate::{Axis, MAX_RANK, Problem};

fn schedules() -> Vec<Schedule> {
    let axis = Axis::neighborhood(40, 9);
    let mut schedules = vec![];
    for (head_dim, head_dim_v) in [(8, 8), (64, 40), (128, 128), (8, 128), (8, 256), (256, 136)] {
        for rank in 1..=MAX_RANK {
            let problem = Problem::new(&[axis; MAX_RANK][..rank], 1, head_dim);
            let problem = problem.with_head_dim_v(head_dim_v);
            schedules.extend(plan(&problem, Element::F16));
            let backward = plan_backward(&problem, Element::F16, None).expect("supported");
            schedules.extend(backward.schedules());
        }
    }
    schedules
}

#[test]
fn every_macro_is_defined_once_and_used() {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    for schedule in schedules() {
        for architecture in Architecture::ALL {
            let source = schedule.source(architecture);
            for (name, value) in schedule.macros(architecture) {
                let line = format!("#define {name} {value}\n");
                assert_eq!(source.matches(&format!("#define {name} ")).count(), 1, "{name}");
                assert!(source.contains(&line), "{name}");
                let uses = source.split(|c| !is_part(c)).filter(|word| *word == name).count();
                assert!(uses > 1, "{name} is not used");
            }
        }
    }
}

#[test]
fn assembly_is_where_a_model_of_the_machine_can_replace_it() {
    let headers = [
        include_str!("../../cuda/device.cuh"),
        include_str!("../../cuda/tma.cuh"),
        include_str!("../cuda/tcgen05.cuh"),
    ];
    for schedule in schedules() {
        let mut source = schedule.source(Architecture::Sm100);
        for header in headers {
            assert!(source.contains(header));
            source = source.replace(header, "");
        }
        assert!(!source.contains("asm"), "{schedule}");
    }
}

/// Where NVRTC is installed.
#[cfg(feature = "cuda")]
#[test]
fn both_chips_take_the_kernels_without_spills() {
    use crate::native::compile::{Source, build, has_compiler};
    if !has_compiler() {
        let is_required = std::env::var("BURN_NATTEN_REQUIRE_NVRTC").is_ok_and(|of| of == "1");
        assert!(!is_required, "no libnvrtc");
        return println!("not run: there is no libnvrtc");
    }
    let axes = [Axis::neighborhood(40, 9), Axis::neighborhood(40, 9).with_causal(true)];
    let problem = Problem::new(axes, 2, 128).with_additional(9);
    let forward = plan(&problem, Element::Bf16).expect("supported");
    for architecture in Architecture::ALL {
        let code = forward.source(architecture);
        // Waits that end belong to every kernel that is checked.
        for (name, code) in
            [("plain", code.clone()), ("bounded", format!("#define BOUNDED 1\n{code}"))]
        {
            let name = format!("{forward}_{name}");
            let source = Source { name, code, options: architecture.options() };
            let (_, log) = build(&source).unwrap_or_else(|error| panic!("{error}"));
            let is_bounded = source.name.ends_with("bounded");
            assert!(is_bounded || log.contains(" 0 bytes spill stores"), "{log}");
        }
    }
}
