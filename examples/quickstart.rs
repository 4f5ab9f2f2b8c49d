//! Neighborhood attention over an image of features, and its gradients.
//!
//! `cargo run --example quickstart`

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::{NeighborhoodOptions, na2d};

fn main() {
    let device = Device::flex().autodiff();
    // [batch, height, width, heads, head_dim]
    let features = || Tensor::<5>::random([1, 16, 16, 4, 32], Distribution::Default, &device);
    let query = features().require_grad();
    let (key, value) = (features(), features());

    // Every pixel attends to 7 x 7 others: neighbors along the height, every second along the width.
    let options = NeighborhoodOptions::<2>::new(7).with_dilation([1, 2]);
    let out = na2d(query.clone(), key, value, options);
    println!("output   {:?}", out.dims());

    let gradients = out.sum().backward();
    let gradient = query.grad(&gradients).expect("the output depends on the query");
    println!("gradient {:?}", gradient.dims());
}
