//! Gradients of keys and values whose heads of queries several CTAs share: where keys are few and groups large, there would be too few
//! CTAs otherwise. Each leaves its sums in memory, in single precision, and one more kernel adds them up, always in the same order.

use std::ops::Range;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Element;
use super::compile::Cubin;
use super::grid::parameters;
use super::launch::{Buffer, Kernel, launch};
use crate::Problem;

/// Name and CUDA C++ of the program that adds up sums.
pub(crate) fn source(element: Element) -> (String, String) {
    let macros = format!("#define BF16 {}\n", usize::from(element == Element::Bf16));
    let code = concat!(include_str!("cuda/device.cuh"), include_str!("cuda/splits.cu"));
    (format!("splits_{}", element.name()), macros + code)
}

/// What CTAs that share the heads of a group leave to be added up.
pub(super) struct Splits {
    /// CTAs for the heads of a group.
    pub count: usize,
    /// Elements of the gradients of a key and of a value that they sum.
    pub elements: [Range<usize>; 2],
    /// The program that adds up.
    pub cubin: Arc<Cubin>,
}

/// Rows of the gradients.
fn rows(problem: &Problem) -> usize {
    problem.batch * problem.keys() * problem.heads_kv
}

impl Splits {
    /// Memory for the sums of both gradients, `[batch, keys, heads_kv, splits, elements]` each.
    pub(super) fn sums(&self, client: &Client, problem: &Problem) -> [Handle; 2] {
        let bytes = |elements: &Range<usize>| {
            size_of::<f32>() * rows(problem) * self.count * elements.len()
        };
        self.elements.each_ref().map(|elements| client.empty(bytes(elements).max(1)))
    }

    /// Enqueues the adding up.
    pub(super) fn launch(
        &self,
        client: &Client,
        problem: &Problem,
        sums: &[Handle; 2],
        gradients: &[Handle; 2],
    ) {
        let dims = [problem.head_dim, problem.head_dim_v];
        for (((elements, dim), sums), gradient) in
            self.elements.iter().zip(dims).zip(sums).zip(gradients)
        {
            let blocks = (rows(problem) * (elements.len() / ELEMENTS)).div_ceil(THREADS);
            if blocks == 0 {
                continue;
            }
            let kernel = Kernel {
                cubin: self.cubin.clone(),
                entry: c"add_splits",
                grid: blocks as u32,
                block: THREADS as u32,
                shared_memory: 0,
            };
            let params = Params {
                pointers: [0; 2],
                rows: rows(problem) as i64,
                splits: self.count as i32,
                width: elements.len() as i32,
                dim: dim as i32,
                start: elements.start as i32,
            };
            // SAFETY: the assertion below counts every byte.
            let params = unsafe { parameters(params, &[0, 1]) };
            launch(
                client,
                kernel,
                vec![Buffer::written(gradient), Buffer::read(sums)],
                vec![params],
            );
        }
    }
}

const THREADS: usize = 256;
/// Elements of a thread.
const ELEMENTS: usize = 4;

/// `SplitParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 2],
    rows: i64,
    splits: i32,
    width: i32,
    dim: i32,
    start: i32,
}

const _: () = assert!(size_of::<Params>() == 8 * 3 + 4 * 4);
