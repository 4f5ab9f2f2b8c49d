//! x
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm90::{Union, UnionKernel};
fn main() {
    let to = std::env::args().nth(1).unwrap();
    for element in [Element::F16, Element::Bf16] {
        for group in [1, 4, 8, 12, 16, 32] {
            for (head_dim, head_dim_v) in [(16, 16), (32, 64), (64, 64), (80, 48), (128, 128)] {
                for keys in [16, 32, 64] {
                    let is_causal = true;
                    let of =
                        Union { element, head_dim, head_dim_v, group, keys, is_causal, part: 64 };
                    for k in UnionKernel::ALL {
                        std::fs::write(format!("{to}/{}.cu", of.name(k)), of.source(k)).unwrap();
                    }
                    let (n, s) = of.lists_source();
                    std::fs::write(format!("{to}/{n}.cu"), s).unwrap();
                }
            }
        }
    }
}
