//! Faults of the kernels that go from block to block, and of those that turn lists around.

use super::{Fault, On, fault};

/// Of the forward pass.
// The block's own fence is one of two: every thread that multiplies has the rows' behind the same barrier.
pub const FORWARD: &[Fault] = &[
    fault(
        "visits: rows are multiplied before they are there",
        On::Visits,
        "    wait_for_copies();\n    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);",
        "    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);",
    ),
    fault(
        "visits: rows are not fenced for wgmma",
        On::Visits,
        "    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);",
        "    named_sync(1 + warpgroup, 128);",
    ),
    fault(
        "visits: rows are multiplied before others have copied theirs",
        On::Visits,
        "    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);",
        "    shared_proxy_fence();",
    ),
    fault(
        "visits: the next rows take the place of these",
        On::Visits,
        "consumer.gather(rows + (number ^ 1) * TILE);",
        "consumer.gather(rows + number * TILE);",
    ),
    fault(
        "visits: the block is multiplied before it is there",
        On::Visits,
        "  wait_for_copies();\n  shared_proxy_fence();\n  __syncthreads();",
        "  shared_proxy_fence();\n  __syncthreads();",
    ),
    fault(
        "visits: the block is multiplied before others have copied theirs",
        On::Visits,
        "  shared_proxy_fence();\n  __syncthreads();\n  int number = 0;",
        "  shared_proxy_fence();\n  int number = 0;",
    ),
    fault(
        "visits: results are read before lanes have written theirs",
        On::Visits,
        "    __syncwarp();\n    constexpr int PIECES",
        "    constexpr int PIECES",
    ),
    fault(
        "visits: weights are multiplied before scores are there",
        On::Visits,
        "    wgmma_wait<0>();\n    pin(scores);",
        "    pin(scores);",
    ),
    fault(
        "visits: results are written while they are multiplied",
        On::Visits,
        "    wgmma_wait<0>();\n    pin(out);",
        "    pin(out);",
    ),
    fault(
        "visits: results are put together with those of other heads",
        On::Visits,
        "(first + other) % GROUP) * DIM_V + 8 * column), some);",
        "first % GROUP) * DIM_V + 8 * column), some);",
    ),
    fault(
        "visits: entries are counted while others still count",
        On::Visits,
        "    visit(entry, block, __match_any_sync(~0u, block));\n    __syncwarp();",
        "    visit(entry, block, __match_any_sync(~0u, block));",
    ),
    fault(
        "visits: counts are begun while others still clear them",
        On::Visits,
        "own[block] = 0;\n  __syncwarp();",
        "own[block] = 0;",
    ),
    fault(
        "visits: starts are made before warps have counted",
        On::Visits,
        "    if (lane == 31) of_warps[warp] = sum;\n    __syncthreads();",
        "    if (lane == 31) of_warps[warp] = sum;",
    ),
    fault(
        "visits: places are taken while others still look for theirs",
        On::Visits,
        "    const u32 at = block >= 0 ? own[block] : 0u;\n    __syncwarp();",
        "    const u32 at = block >= 0 ? own[block] : 0u;",
    ),
];

/// Of the backward pass.
pub const BACKWARD: &[Fault] = &[
    fault(
        "visits: rows are multiplied before they are there, gradients",
        On::Visits,
        "    wait_for_copies();\n    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);\n    consumer.gather(number + 1);",
        "    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);\n    consumer.gather(number + 1);",
    ),
    fault(
        "visits: rows are not fenced for wgmma, gradients",
        On::Visits,
        "    shared_proxy_fence();\n    named_sync(1 + warpgroup, 128);\n    consumer.gather(number + 1);",
        "    named_sync(1 + warpgroup, 128);\n    consumer.gather(number + 1);",
    ),
    fault(
        "visits: rows are multiplied before others have copied theirs, gradients",
        On::Visits,
        "    named_sync(1 + warpgroup, 128);\n    consumer.gather(number + 1);",
        "    consumer.gather(number + 1);",
    ),
    fault(
        "visits: the next rows take the place of these, gradients",
        On::Visits,
        "const { return ROWS_OFFSET + (2 * warpgroup + number % 2) * TILE; }",
        "const { return ROWS_OFFSET + 2 * warpgroup * TILE; }",
    ),
    fault(
        "visits: the block is multiplied before it is there, gradients",
        On::Visits,
        "  wait_for_copies();\n  shared_proxy_fence();\n  __syncthreads();\n  consumer.describe(1,",
        "  shared_proxy_fence();\n  __syncthreads();\n  consumer.describe(1,",
    ),
    fault(
        "visits: the block is multiplied before others have copied theirs, gradients",
        On::Visits,
        "  shared_proxy_fence();\n  __syncthreads();\n  consumer.describe(1,",
        "  shared_proxy_fence();\n  consumer.describe(1,",
    ),
    fault(
        "visits: rows are gathered before they are described, gradients",
        On::Visits,
        "  consumer.describe(0, consumer.look(0));\n  __syncthreads();",
        "  consumer.describe(0, consumer.look(0));",
    ),
    fault(
        "visits: rows are described while others still gather, gradients",
        On::Visits,
        "    consumer.consume(number);\n    consumer.describe(number + 2, entry);",
        "    consumer.describe(number + 2, entry);\n    consumer.consume(number);",
    ),
    fault(
        "visits: places are those of two tiles, gradients",
        On::Visits,
        "constexpr int PLACES = 4;",
        "constexpr int PLACES = 2;",
    ),
    fault(
        "visits: limits are those of the next tile, gradients",
        On::Visits,
        "limits = limits_of(number);",
        "limits = limits_of(number + 1);",
    ),
    fault(
        "visits: rows that are nobody's have weights, gradients",
        On::Visits,
        "to[0] = -NEG_INF;",
        "to[0] = 0.f;",
    ),
    fault(
        "visits: weights are made before scores are there, gradients",
        On::Visits,
        "    wgmma_wait<1>();\n    pin(s);",
        "    pin(s);",
    ),
    fault(
        "visits: slopes are made before products are there, gradients",
        On::Visits,
        "    wgmma_wait<0>();\n    pin(dp);",
        "    pin(dp);",
    ),
    fault(
        "visits: slopes are not fenced for wgmma, gradients",
        On::Visits,
        "    shared_proxy_fence();\n    wgmma_fence();",
        "    wgmma_fence();",
    ),
    fault(
        "visits: slopes are multiplied before others have written theirs, gradients",
        On::Visits,
        "    named_sync(1 + warpgroup, 128);\n    float dq[DIM / 2];",
        "    float dq[DIM / 2];",
    ),
    fault(
        "visits: slopes are those of other keys, gradients",
        On::Visits,
        "pieces(shared + slopes_at);",
        "pieces(shared + slopes_at + 8 * SWIZZLE);",
    ),
    fault(
        "visits: results are written while they are multiplied, gradients",
        On::Visits,
        "    wgmma_wait<0>();\n    pin(dv);",
        "    pin(dv);",
    ),
    fault(
        "visits: results are read before lanes have written theirs, gradients",
        On::Visits,
        "    __syncwarp();\n    constexpr int PIECES = DIM / 8",
        "    constexpr int PIECES = DIM / 8",
    ),
    fault(
        "visits: results are those of other heads, gradients",
        On::Visits,
        "(work.own * listed + entry) * GROUP + member :",
        "(work.own * listed + entry) * GROUP :",
    ),
    fault(
        "visits: results have the scale of their quad, gradients",
        On::Visits,
        "      most = max2(most, __shfl_xor_sync(~0u, most, 2));\n",
        "",
    ),
    fault(
        "visits: copies are under way at the end, gradients",
        On::Visits,
        "  wait_for_copies();\n  consumer.finish();",
        "  consumer.finish();",
    ),
    fault(
        "visits: sums are handed over where others still multiply rows, gradients",
        On::Visits,
        "    __syncthreads();\n    if (warpgroup > 0) pass",
        "    if (warpgroup > 0) pass",
    ),
    fault(
        "visits: sums are taken before they are handed over, gradients",
        On::Visits,
        "    __syncthreads();\n    if (warpgroup > 0) return;",
        "    if (warpgroup > 0) return;",
    ),
    fault(
        "visits: rows are added up with the scale of another, gradients",
        On::Visits,
        "__shfl_sync(~0u, own, begin + 2 * i + half);",
        "__shfl_sync(~0u, own, begin + 2 * i);",
    ),
    fault(
        "visits: rows are added up without those of the other half, gradients",
        On::Visits,
        "sum[j] = (sum[j] + __shfl_xor_sync(~0u, sum[j], 16))",
        "sum[j] = sum[j]",
    ),
];
