//! Errors name the argument, the value and the bound.

use burn::tensor::{DType, Device, Int, Tensor};
use burn_natten::{BlockSparseOptions, Strategy, try_block_sparse1d, try_block_sparse2d};
use rstest::rstest;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

const QUERY: [usize; 4] = [2, 10, 6, 8];
const KEY: [usize; 4] = [2, 15, 3, 8];

fn options() -> BlockSparseOptions<1> {
    BlockSparseOptions::new(4, 5)
}

#[rstest]
#[case(QUERY, [3, 15, 3, 8], KEY, [2, 3, 6, 1], "key: axis 0 (batch) is 3, must be 2 as in query")]
#[case(QUERY, KEY, [2, 14, 3, 8], [2, 3, 6, 1], "value: axis 1 (space) is 14, must be 15 as in key")]
#[case(QUERY, [2, 15, 3, 9], KEY, [2, 3, 6, 1], "key: axis 3 (head_dim) is 9, must be 8 as in query")]
#[case(QUERY, [2, 15, 4, 8], [2, 15, 4, 8], [2, 3, 6, 1], "query: has 6 heads, must be a multiple of the 4 heads of key")]
#[case(QUERY, KEY, KEY, [1, 3, 6, 1], "blocks: axis 0 (batch) is 1, must be 2 as in query")]
#[case(QUERY, KEY, KEY, [2, 4, 6, 1], "blocks: axis 1 (blocks of queries) is 4, must be 3 as in query and query_block")]
#[case(QUERY, KEY, KEY, [2, 3, 2, 1], "blocks: axis 2 (heads) is 2, must be 6 as in query or 3 as in key")]
#[case(QUERY, KEY, KEY, [2, 3, 0, 1], "blocks: axis 2 (heads) is 0, must be at least 1")]
fn shapes(
    #[case] query: [usize; 4],
    #[case] key: [usize; 4],
    #[case] value: [usize; 4],
    #[case] blocks: [usize; 4],
    #[case] text: &str,
) {
    let blocks = Tensor::<4, Int>::zeros(blocks, &Device::flex());
    let result = try_block_sparse1d(zeros(query), zeros(key), zeros(value), blocks, options());
    assert_eq!(result.expect_err("does not fit").to_string(), text);
}

#[test]
fn blocks_have_tokens() {
    let run = |options| {
        let x = zeros([1, 4, 4, 1, 8]);
        let blocks = Tensor::<4, Int>::zeros([1, 4, 1, 1], &Device::flex());
        try_block_sparse2d(x.clone(), x.clone(), x, blocks, options).map(|_| ())
    };
    let error = run(BlockSparseOptions::new([2, 0], 2)).expect_err("no queries");
    assert_eq!(error.to_string(), "query_block: axis 1 is 0, must be at least 1");
    let error = run(BlockSparseOptions::new(2, [0, 2])).expect_err("no keys");
    assert_eq!(error.to_string(), "key_block: axis 0 is 0, must be at least 1");
    run(BlockSparseOptions::new(2, 100)).expect("one short block");
    for strategy in [Strategy::Auto, Strategy::Reference] {
        let options = BlockSparseOptions::new(2, usize::MAX).with_strategy(strategy);
        run(options).expect("as long as the axis");
    }
}

#[test]
fn types_and_strategies() {
    let run = |value: Tensor<4>, options| {
        let blocks = Tensor::<4, Int>::zeros([2, 3, 6, 1], &Device::flex());
        try_block_sparse1d(zeros(QUERY), zeros(KEY), value, blocks, options).map(|_| ())
    };
    let error = run(zeros(KEY).cast(DType::F16), options()).expect_err("two types");
    assert_eq!(error.to_string(), "value: has dtype F16, must be F32 as in query");
    let error = run(zeros(KEY), options().with_scale(f64::NAN)).expect_err("no scale");
    assert_eq!(error.to_string(), "scale: is NaN, must be finite");
    let error = run(zeros(KEY), options().with_strategy(Strategy::Hopper)).expect_err("no kernels");
    let text = "strategy: Hopper cannot run here, it needs a GPU of compute capability 9.0";
    assert!(error.to_string().starts_with(text), "{error}");
    let other = options().with_strategy(Strategy::TensorCore);
    let error = run(zeros(KEY), other).expect_err("no kernels");
    let text = "strategy: TensorCore cannot run here, \
                block-sparse attention has Hopper, Portable and Reference";
    assert_eq!(error.to_string(), text);
}
