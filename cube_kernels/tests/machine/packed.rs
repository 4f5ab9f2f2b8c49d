//! All sequences of a packed batch in one launch a pass.

use burn_natten_kernels::native::sm90::{Element, backward_packed, forward_packed};
use burn_natten_kernels::{Axis, KernelError, Problem};
use cubecl::client::Client;
use test_support::packed::{check_backward, check_forward, check_products, images, texts, videos};

use crate::run::{Change, Machine, Policy};
use crate::ways::{client, hopper};

fn on(
    machine: &Machine,
    launch: impl FnOnce() -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    machine.run(launch).unwrap_or_else(|fault| panic!("{fault}"))
}

fn check(machine: &Machine, client: &Client, element: Element, problems: &[Problem]) {
    check_forward(client, element, problems, |packed, inputs, outputs| {
        on(machine, || forward_packed(client, packed, element, None, inputs, outputs))
    });
    check_backward(client, element, problems, |packed, inputs, outputs| {
        on(machine, || backward_packed(client, packed, element, None, inputs, outputs))
    });
}

#[test]
fn sequences_of_different_lengths() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let like = Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2).with_head_dim_v(32);
    check(&machine, &client(), Element::Bf16, &texts(like));
}

#[test]
fn images_of_different_sizes() {
    let Some(machine) = hopper(Policy::Early) else { return };
    let like = Problem::new([Axis::UNIT], 2, 32);
    check(&machine, &client(), Element::F16, &images(like));
}

#[test]
fn products_in_place_of_outputs() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let (client, like) = (client(), Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2));
    check_products(&client, Element::Bf16, &texts(like), |packed, inputs, outputs| {
        on(&machine, || backward_packed(&client, packed, Element::Bf16, None, inputs, outputs))
    });
}

#[test]
#[ignore = "takes a minute"]
fn everything_in_every_order() {
    for policy in Policy::ALL {
        let Some(machine) = hopper(policy) else { return };
        let client = client();
        for element in [Element::F16, Element::Bf16] {
            let like = Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2);
            check(&machine, &client, element, &texts(like.with_head_dim_v(32)));
            check(&machine, &client, element, &texts(Problem::new([Axis::UNIT], 2, 128)));
            check(&machine, &client, element, &texts(Problem::new([Axis::UNIT], 1, 256)));
            check(&machine, &client, element, &images(like));
            check(&machine, &client, element, &videos(like.with_head_dim_v(40)));
            check(&machine, &client, element, &videos(Problem::new([Axis::UNIT], 1, 128)));
        }
    }
}

/// CTAs that have few tiles of many sequences acquire the maps of a sequence at its first tile. The machine's have many.
#[test]
fn maps_of_a_tile_are_acquired_with_it() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let change = Change {
        from: "  int is_ahead, unused;",
        to: "  static constexpr int is_ahead = 0; int unused[2];",
    };
    let changed = crate::ways::changed(&machine, change);
    let client = client();
    let like = Problem::new([Axis::UNIT], 2, 32);
    check(&changed, &client, Element::Bf16, &texts(like));
    check(&changed, &client, Element::F16, &images(like));
}

/// Without the fence a map that the host wrote may not be there for the CTA that loads by it.
#[test]
fn maps_in_memory_are_acquired() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    let change = Change { from: "  launch.start(*(Tile*)(memory + TILE_OFFSET));\n", to: "" };
    let changed = crate::ways::changed(&machine, change);
    let problems = texts(Problem::new([Axis::UNIT], 1, 32));
    let fault = std::cell::Cell::new(None);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        check_forward(&client, Element::Bf16, &problems, |packed, inputs, outputs| {
            let run = || forward_packed(&client, packed, Element::Bf16, None, inputs, outputs);
            changed.run(run).unwrap_or_else(|text| {
                fault.set(Some(text));
                Ok(())
            })
        })
    }));
    let text = fault.into_inner().expect("the machine finds it");
    assert!(text.contains("that nobody has acquired before"), "{text}");
}
