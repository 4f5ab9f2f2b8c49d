//! Shards and cotangents that are views give what contiguous ones of the same values give.

use burn::tensor::{Distribution, Tensor};
use burn_natten::NeighborhoodOptions;
use burn_natten::parallel::{DenseSplit, Split, attention_sharded, na2d_sharded};

use crate::support::check::close;
use crate::support::layout::{cropped, for_each_view, swapped};
use crate::support::run::values;
use crate::support::{check::F32, quick_devices};

/// Outputs of each member, and the gradients of all inputs.
type Run = Vec<Vec<f64>>;

/// Runs `operator` on tensors that are laid by `lay`.
fn run<const D: usize>(
    members: &[[Tensor<D>; 4]],
    lay: &dyn Fn(Tensor<D>) -> Tensor<D>,
    operator: &dyn Fn([Vec<Tensor<D>>; 3]) -> Vec<Tensor<D>>,
) -> Run {
    let tracked: Vec<_> = members
        .iter()
        .map(|tensors| tensors.clone().map(|tensor| tensor.detach().require_grad()))
        .collect();
    let of = |index: usize| tracked.iter().map(|tensors| lay(tensors[index].clone())).collect();
    let outs = operator([of(0), of(1), of(2)]);
    let weights = tracked.iter().map(|tensors| lay(tensors[3].clone()));
    let terms = outs.iter().zip(weights).map(|(out, weight)| (out.clone() * weight).sum());
    let loss = terms.reduce(|a, b| a + b).expect("there are members");
    let tape = loss.backward();
    let inputs = tracked.iter().flat_map(|tensors| tensors[..3].iter());
    let gradients = inputs.map(|tensor| values(tensor.grad(&tape).expect("is tracked")));
    outs.iter().cloned().map(values).chain(gradients).collect()
}

fn compare(what: &str, got: Run, want: &Run) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        close(what, got, want, F32);
    }
}

#[test]
fn windows_over_views() {
    for device in quick_devices() {
        let device = device.device.autodiff();
        let shard = |width| {
            let shape = [2, 5, width, 2, 8];
            [(); 4].map(|()| Tensor::<5>::random(shape, Distribution::Default, &device))
        };
        let members = [shard(4), shard(7)];
        for split in [Split::Heads { axis: 1 }, Split::Halo { axis: 1 }] {
            let operator = |[query, key, value]: [Vec<Tensor<5>>; 3]| {
                let options = NeighborhoodOptions::<2>::new(3).with_dilation([1, 2]);
                na2d_sharded(query, key, value, options, split)
            };
            let want = run(&members, &|tensor| tensor, &operator);
            for_each_view::<5>(|name, lay| {
                compare(&format!("{split}, {name}"), run(&members, lay, &operator), &want);
            });
        }
    }
}

#[test]
fn dense_attention_over_views() {
    for device in quick_devices() {
        let device = device.device.autodiff();
        let shard = |tokens| {
            let shape = [2, tokens, 2, 8];
            [(); 4].map(|()| Tensor::<4>::random(shape, Distribution::Default, &device))
        };
        let members = [shard(4), shard(7)];
        for split in [DenseSplit::Heads, DenseSplit::Gather, DenseSplit::Ring] {
            let operator = |[query, key, value]: [Vec<Tensor<4>>; 3]| {
                let options = burn_natten::AttentionOptions::new().with_causal(true);
                attention_sharded(query, key, value, options, split)
            };
            let want = run(&members, &|tensor| tensor, &operator);
            type View = fn(Tensor<4>) -> Tensor<4>;
            let views: [(&str, View); 4] = [
                ("cropped tokens", |tensor| cropped(tensor, 1)),
                ("cropped heads", |tensor| cropped(tensor, 2)),
                ("tokens and heads exchanged", |tensor| swapped(tensor, 1, 2)),
                ("heads and vectors exchanged", |tensor| swapped(tensor, 2, 3)),
            ];
            for (name, lay) in views {
                compare(&format!("{split}, {name}"), run(&members, &lay, &operator), &want);
            }
        }
    }
}
