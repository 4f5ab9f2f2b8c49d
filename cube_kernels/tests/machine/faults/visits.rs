//! Faults of the kernels that go from block to block, and of those that turn lists around.

use super::{Fault, On, fault};

// The block's own fence is one of two: every thread that multiplies has the rows' behind the same barrier.
pub const FAULTS: &[Fault] = &[
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
        "(first + other) % GROUP) * DIM_V + 8 * column) = some;",
        "first % GROUP) * DIM_V + 8 * column) = some;",
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
