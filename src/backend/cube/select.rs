//! The selection of native sparse attention: a native Hopper kernel, a Portable one, or else tensor operations.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::tensor::{DType, FloatDType, IntDType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
#[cfg(feature = "cuda")]
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::sparse::{self, Selection};
#[cfg(feature = "cuda")]
use burn_natten_kernels::{KernelError, Strided};
#[cfg(feature = "cuda")]
use cubecl::server::Handle;

#[cfg(feature = "cuda")]
use super::memory::Lay;
use super::memory::empty;
use super::{as_they_lie, is_launched};
use crate::Strategy;
use crate::backend::log_once;
use crate::backend::select::{OptionalLists, SelectOps, SelectPlan, Selected, TopPlan, reference};

/// What the kernel computes; `None` where it is tensor operations that do.
fn selection(plan: &SelectPlan, dtype: DType) -> Option<Selection> {
    let is_composed = plan.strategy == Strategy::Reference || plan.mslk.is_some();
    let has_work = plan.problem.batch * plan.rows() * plan.compressed() > 0;
    if is_composed || dtype == DType::F64 || !has_work {
        return None;
    }
    let (problem, sizes) = (&plan.problem, plan.sizes);
    let mut selection = Selection::new(plan.tokens, problem.heads, problem.head_dim);
    selection.batch = problem.batch;
    selection.rows = plan.rows();
    selection.heads_kv = problem.heads_kv;
    selection.scale = problem.scale;
    selection.cmp_block = sizes.cmp_block;
    selection.cmp_stride = sizes.cmp_stride;
    selection.slc_block = sizes.slc_block;
    selection.num_selected = sizes.num_selected;
    selection.num_init = sizes.num_init;
    selection.num_local = sizes.num_local;
    selection.query_tile = sizes.query_tile;
    selection.cmp_top = sizes.cmp_top;
    selection.cmp_group = sizes.cmp_group;
    Some(selection)
}

/// Launches the native Hopper kernel, where strategy, type and device have it.
#[cfg(feature = "cuda")]
fn by_tensor_cores(
    query: &CubeTensor,
    plan: &SelectPlan,
    selection: &Selection,
    [query_view, key_view]: [&Strided; 2],
    lse: Option<&Handle>,
    lists: &sparse::Selected<Handle>,
) -> Option<Result<(), KernelError>> {
    let element = match query.dtype {
        DType::F16 => sm90::Element::F16,
        DType::BF16 => sm90::Element::Bf16,
        _ => return None,
    };
    let is_wanted = matches!(plan.strategy, Strategy::Auto | Strategy::Hopper);
    if !is_wanted || !sm90::is_available(&query.client) {
        return None;
    }
    Some(sm90::select_blocks(&query.client, selection, element, query_view, key_view, lse, lists))
}

fn select(
    query: CubeTensor,
    key: CubeTensor,
    lse: Option<CubeTensor>,
    plan: SelectPlan,
) -> Selected<CubeBackend> {
    let Some(selection) = selection(&plan, query.dtype) else {
        return reference::select::<CubeBackend>(query, key, &plan);
    };
    let entries = |count| {
        let shape = [plan.problem.batch, plan.tiles(), plan.list_heads(), count];
        empty(&query, Shape::new(shape), DType::I32)
    };
    let blocks = entries(plan.sizes.num_selected);
    let super_blocks = plan.sizes.cmp_top.map(entries);
    let handles = sparse::Selected {
        blocks: blocks.handle.clone(),
        compressed: super_blocks.as_ref().map(|lists| lists.handle.clone()),
    };
    #[cfg(feature = "cuda")]
    let lse = lse.filter(|lse| lse.dtype == DType::F32).map(|lse| into_contiguous(lse).handle);
    #[cfg(not(feature = "cuda"))]
    drop(lse);
    let dtype = dtype_to_storage_type(query.dtype);
    let shapes = selection.shapes();
    let result = as_they_lie(|lay| {
        let [query_view, key_view] =
            [(&query, shapes[0]), (&key, shapes[1])].map(|(tensor, shape)| lay.view(tensor, shape));
        let tensors = [&query_view, &key_view];
        #[cfg(feature = "cuda")]
        match by_tensor_cores(&query, &plan, &selection, tensors, lse.as_ref(), &handles) {
            // A contiguous copy will do, and costs little beside the scores.
            Some(Err(error @ KernelError::Layout { .. })) if matches!(lay, Lay::AsTheyAre) => {
                return Err(error);
            }
            Some(Err(error)) => {
                log_once(format!("blocks are selected by Portable kernels, because {error}"));
            }
            Some(Ok(())) => return Ok(()),
            None => {}
        }
        let [query_view, key_view] = tensors;
        sparse::select_blocks(&query.client, &selection, dtype, query_view, key_view, &handles)
    });
    if !is_launched(plan.strategy, result) {
        return reference::select::<CubeBackend>(query, key, &plan);
    }
    let stored = |lists: CubeTensor| match plan.ints {
        IntDType::I32 => lists,
        ints => CubeBackend::int_cast(lists, ints),
    };
    Selected {
        blocks: stored(blocks),
        super_blocks: match super_blocks.map(stored) {
            Some(lists) => OptionalLists::Some { lists },
            None => OptionalLists::None,
        },
    }
}

impl SelectOps for CubeBackend {
    fn select_blocks(query: CubeTensor, key: CubeTensor, plan: SelectPlan) -> Selected<Self> {
        select(query, key, None, plan)
    }

    fn select_blocks_by(
        query: CubeTensor,
        key: CubeTensor,
        logsumexp: CubeTensor,
        plan: SelectPlan,
    ) -> Selected<Self> {
        select(query, key, Some(logsumexp), plan)
    }

    fn top_blocks(scores: CubeTensor, plan: TopPlan) -> CubeTensor {
        let [batch, tiles, heads, count] = scores.shape().dims::<4>();
        let rows = batch * tiles * heads;
        if rows * plan.entries == 0 {
            let shape = Shape::new([batch, tiles, heads, plan.entries]);
            return Self::int_zeros(shape, &scores.device, plan.ints);
        }
        let scores = match scores.dtype {
            DType::F64 => Self::float_cast(scores, FloatDType::F32),
            _ => scores,
        };
        let scores = into_contiguous(scores);
        let lists = empty(&scores, Shape::new([batch, tiles, heads, plan.entries]), DType::I32);
        let dtype = dtype_to_storage_type(scores.dtype);
        let sizes = [rows, count, plan.entries];
        match sparse::top(&scores.client, dtype, sizes, &scores.handle, &lists.handle) {
            Ok(()) if plan.ints == IntDType::I32 => lists,
            Ok(()) => Self::int_cast(lists, plan.ints),
            Err(error) => {
                log_once(format!(
                    "the best blocks are listed by the backend's own sort, because {error}"
                ));
                reference::top_blocks::<Self>(scores, plan)
            }
        }
    }
}
