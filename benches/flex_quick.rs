use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::*;
use std::time::Instant;
fn main() {
    let dev = Device::flex();
    let ad = dev.clone().autodiff();
    for (hw, k, d) in [(128, 7, 32), (128, 13, 32), (128, 7, 64), (128, 7, 40)] {
        let mk = |dev: &Device| {
            Tensor::<5>::random([1, hw, hw, 4, d], Distribution::Normal(0., 1.), dev)
        };
        let o = || NeighborhoodOptions::<2>::new(k);
        let (q, kk, v) = (mk(&dev), mk(&dev), mk(&dev));
        let flops = 2.0 * (hw * hw * k * k * 4 * 2 * d) as f64;
        let mut best = f64::MAX;
        for _ in 0..7 {
            let t = Instant::now();
            let _ = na2d(q.clone(), kk.clone(), v.clone(), o());
            best = best.min(t.elapsed().as_secs_f64());
        }
        println!("k {k} d {d} fwd {:.2} ms {:.1} GFLOP/s", best * 1e3, flops / best / 1e9);
        let x = [(); 3].map(|_| mk(&ad).require_grad());
        let mut best = f64::MAX;
        for _ in 0..5 {
            let t = Instant::now();
            let out = na2d(x[0].clone(), x[1].clone(), x[2].clone(), o());
            let g = out.sum().backward();
            let _ = x[0].grad(&g);
            best = best.min(t.elapsed().as_secs_f64());
        }
        println!(
            "k {k} d {d} fwd+bwd {:.2} ms {:.1} GFLOP/s",
            best * 1e3,
            3.5 * flops / best / 1e9
        );
    }
    for (n, c) in [(2048usize, false), (2048, true)] {
        let mk = || Tensor::<4>::random([1, n, 8, 64], Distribution::Normal(0., 1.), &dev);
        let (q, k, v) = (mk(), mk(), mk());
        let mut best = f64::MAX;
        for _ in 0..5 {
            let t = Instant::now();
            let _ =
                attention(q.clone(), k.clone(), v.clone(), AttentionOptions::new().with_causal(c));
            best = best.min(t.elapsed().as_secs_f64());
        }
        let flops = 4.0 * (n * n * 8 * 64) as f64 / if c { 2.0 } else { 1.0 };
        println!("dense {n} causal {c} fwd {:.2} ms {:.1} GFLOP/s", best * 1e3, flops / best / 1e9);
    }
}
