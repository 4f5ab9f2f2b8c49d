//! Faults of gradients of block-sparse attention: of warpgroups that share rows, and of the order in which blocks are taken.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "shared rows: sums are written where rows are still multiplied",
        On::SharedRows,
        "    named_sync(SUMS_BARRIER, 32 * CONSUMER_WARPS);\n    if (warpgroup() > 0) {",
        "    if (warpgroup() > 0) {",
    ),
    fault(
        "shared rows: sums are added up before they are there",
        On::SharedRows,
        "    named_sync(SUMS_BARRIER, 32 * CONSUMER_WARPS);\n    if (warpgroup() == 0) {",
        "    if (warpgroup() == 0) {",
    ),
    fault(
        "shared rows: both warpgroups take the same steps",
        On::SharedRows,
        "low = (step + warpgroup()) % TURN;",
        "low = step % TURN;",
    ),
    fault(
        "shared rows: each pass begins with the first warpgroup",
        On::SharedRows,
        "low = (step + warpgroup()) % TURN;",
        "low = warpgroup();",
    ),
    fault(
        "shared rows: a step is free when all warpgroups are done with it",
        On::SharedRows,
        "barrier_init(barriers.empty(i), STEP_WARPS);",
        "barrier_init(barriers.empty(i), CONSUMER_WARPS);",
    ),
    fault(
        "shared rows: rows are free when they are in registers",
        On::SharedRows,
        "    if constexpr (SHARED_ROWS) return;\n",
        "",
    ),
    fault(
        "long lists: warps place before others have counted",
        On::LongLists,
        "      if (lane == 0) of_warps[warp] = __popc(lanes);\n      __syncthreads();",
        "      if (lane == 0) of_warps[warp] = __popc(lanes);",
    ),
    fault(
        "long lists: others are placed among them",
        On::LongLists,
        "all_longs + row - before",
        "row - before",
    ),
];
