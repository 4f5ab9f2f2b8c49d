//! Faults of the selection of blocks.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "selection: keys are multiplied before they have arrived",
        On::Selection,
        "  barrier_wait(keys.full(stage), number / STAGES & 1);\n",
        "",
    ),
    fault(
        "selection: keys are loaded to where others are multiplied",
        On::Selection,
        "    if (number >= STAGES) barrier_wait(empty(stage), number / STAGES - 1 & 1);\n",
        "",
    ),
    fault(
        "selection: the wait for a free stage has the wrong parity",
        On::Selection,
        "barrier_wait(empty(stage), number / STAGES - 1 & 1)",
        "barrier_wait(empty(stage), number / STAGES & 1)",
    ),
    fault(
        "selection: a free stage needs the arrival of one warp",
        On::Selection,
        "barrier_init(keys.empty(i), WARPS);",
        "barrier_init(keys.empty(i), 1);",
    ),
    fault(
        "selection: half of the bytes are expected",
        On::Selection,
        "barrier_expect(full(stage), STAGE);",
        "barrier_expect(full(stage), STAGE / 2);",
    ),
    fault(
        "selection: barriers are not fenced for TMA",
        On::Selection,
        "    barrier_init_fence();\n",
        "",
    ),
    fault(
        "selection: lists are read before they are there",
        On::Selection,
        "  __syncthreads();\n  int any = 0",
        "  int any = 0",
    ),
    fault(
        "selection: scores are used before they are there",
        On::Selection,
        "  wgmma_wait<0>();\n  pin(scores);",
        "  pin(scores);",
    ),
    fault(
        "selection: keys are freed while they are multiplied",
        On::Selection,
        "  wgmma_wait<0>();\n  pin(scores);\n  if (threadIdx.x % 32 == 0) barrier_arrive(keys.empty(stage));",
        "  if (threadIdx.x % 32 == 0) barrier_arrive(keys.empty(stage));\n  wgmma_wait<0>();\n  pin(scores);",
    ),
    fault("selection: no fence before the product", On::Selection, "  wgmma_fence();\n", ""),
    fault(
        "selection: scores are taken of what others still write",
        On::Selection,
        "    meet();\n    if (!owns)",
        "    if (!owns)",
    ),
    fault(
        "selection: warps that share a list do not meet behind their writes",
        On::SharedSelection,
        "    meet();\n    if (!owns)",
        "    if (!owns)",
    ),
    // Where a warp has its lists to itself, its lanes have voted behind their reads.
    fault(
        "selection: warps that share a list do not meet ahead of their writes",
        On::SharedSelection,
        "    mask(step, 0.f);\n    meet();",
        "    mask(step, 0.f);",
    ),
];
