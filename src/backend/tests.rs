//! Gradients that nobody wants are neither computed nor allocated, and the others are the same bits without them.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};
use burn_natten_kernels::{Axis, KeyValue, Operands, Outputs, Problem};

use super::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionOps, AttentionResults,
    Gradient, Plan,
};
use crate::{Context, Strategy};

fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "cpu")]
        Device::cpu(),
    ]
}

fn problem() -> Problem {
    let sizes = crate::plan::Sizes {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        head_dim: 6,
        head_dim_v: 4,
        additional: 3,
        has_bias: true,
    };
    let windows = crate::plan::Windows {
        kernel_size: &[4],
        stride: &[2],
        dilation: &[1],
        is_causal: &[false],
    };
    sizes.neighborhood(&[11], windows, None).expect("a valid problem")
}

fn random(device: &Device, shape: impl Into<Shape>) -> Tensor<4> {
    Tensor::random(shape, Distribution::Default, device)
}

type Bits = Vec<u32>;

/// The bits of each gradient that is wanted.
fn gradients(
    plan: &Plan,
    inputs: &Operands<Tensor<4>>,
    upstream: &Outputs<Tensor<4>>,
    wanted: [bool; 6],
) -> [Option<Bits>; 6] {
    let operands =
        || AttentionInputs::new(inputs.as_ref().map(|_, tensor| tensor.clone().into_dispatch()));
    let wanted = inputs.as_ref().map(|operand, _| wanted[operand as usize]);
    let results = Dispatch::attention_forward(operands(), plan.clone());
    let upstream = AttentionResults {
        out: upstream.out.clone().into_dispatch(),
        lse: upstream.lse.clone().squeeze_dim::<3>(3).into_dispatch(),
    };
    let AttentionGradients { query, key, value, additional_key, additional_value, bias } =
        Dispatch::attention_backward(operands(), results, upstream, true, wanted, plan.clone());
    let bits = |tensor: Tensor<4>| -> Bits {
        let values = tensor.into_data().try_to_vec::<f32>().expect("f32");
        values.into_iter().map(f32::to_bits).collect()
    };
    [query, key, value, additional_key, additional_value, bias]
        .map(|gradient: Gradient<Dispatch>| gradient.tensor().map(Tensor::from_dispatch).map(bits))
}

#[test]
fn gradients_that_nobody_wants_are_not_there_and_change_no_others() {
    let problem = problem();
    let Axis { queries, keys, .. } = problem.axes[2];
    for device in devices() {
        for strategy in [Strategy::Auto, Strategy::Reference] {
            let plan = Plan::new(problem, DType::F32, &device, strategy, Context::new());
            let plan = plan.expect("a plan");
            let tensor = |shape: [usize; 4]| random(&device, shape);
            let more = |dim| tensor([2, 3, 2, dim]);
            let inputs = Operands {
                additional: Some(KeyValue { key: more(6), value: more(4) }),
                // Of a line, as `[heads, distances]` lie in memory.
                bias: Some(tensor([4, 1, 1, 7])),
                ..Operands::new(
                    tensor([2, queries, 4, 6]),
                    tensor([2, keys, 2, 6]),
                    tensor([2, keys, 2, 4]),
                )
            };
            let upstream =
                Outputs { out: tensor([2, queries, 4, 4]), lse: tensor([2, queries, 4, 1]) };
            let all = gradients(&plan, &inputs, &upstream, [true; 6]);
            assert!(all.iter().all(Option::is_some));
            for bits in 0..63 {
                let wanted = [0, 1, 2, 3, 4, 5].map(|place| bits >> place & 1 == 1);
                let some = gradients(&plan, &inputs, &upstream, wanted);
                for (place, (some, all)) in some.iter().zip(&all).enumerate() {
                    let expected = all.as_ref().filter(|_| wanted[place]);
                    assert_eq!(some.as_ref(), expected, "{device:?} {strategy:?} {wanted:?}");
                }
            }
        }
    }
}
