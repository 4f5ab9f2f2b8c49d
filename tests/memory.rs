//! How much memory a forward and backward pass on Flex takes: an allocator that counts.
//!
//! A binary of its own, because the count is that of a process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::{NeighborhoodOptions, na2d};

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The scores of all windows alone would be five times one tensor, a gather of their keys 169 times.
#[test]
fn forward_and_backward_take_at_most_three_times_the_tensors() {
    const SHAPE: [usize; 5] = [1, 128, 128, 4, 32];
    const KERNEL: usize = 13;
    let device = Device::flex().autodiff();
    let normal = Distribution::Normal(0.0, 1.0);
    let before = USED.load(Ordering::Relaxed);

    let inputs = [(); 3].map(|_| Tensor::<5>::random(SHAPE, normal, &device).require_grad());
    let weights = Tensor::<5>::random(SHAPE, normal, &device);
    PEAK.store(USED.load(Ordering::Relaxed), Ordering::Relaxed);

    let [query, key, value] = inputs.clone();
    let out = na2d(query, key, value, NeighborhoodOptions::<2>::new(KERNEL));
    let gradients = (out * weights).sum().backward();
    let gradients = inputs.map(|input| input.grad(&gradients).expect("a gradient"));

    let peak = PEAK.load(Ordering::Relaxed) - before;
    // query, key, value, out, the gradients of the four, and the weights of the loss.
    let tensor = SHAPE.iter().product::<usize>() * size_of::<f32>();
    let ratio = peak as f64 / (9 * tensor) as f64;
    println!("peak {} MiB, {ratio:.2} times the tensors", peak >> 20);
    assert!(ratio < 3.0, "peak memory is {ratio:.2} times the tensors' size");
    assert_eq!(gradients[0].dims(), SHAPE);
}
