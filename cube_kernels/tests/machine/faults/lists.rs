//! Faults of the kernels for queries that have lists of their own.

use super::{Fault, On, fault};

/// Of those that find what the queries of a CTA list, and of the forward pass.
pub const FORWARD: &[Fault] = &[
    fault(
        "lists: what queries list is compared before all is there",
        On::Lists,
        "    listed[i] = block;\n  }\n  __syncthreads();",
        "    listed[i] = block;\n  }",
    ),
    fault(
        "lists: warps take places before others have counted",
        On::Lists,
        "    if (lane == 0) found[warp] = __popc(lanes);\n    __syncthreads();",
        "    if (lane == 0) found[warp] = __popc(lanes);",
    ),
    fault(
        "lists: warps count again before others have read",
        On::Lists,
        "(u64)bits << 32 | (u32)block;\n    __syncthreads();",
        "(u64)bits << 32 | (u32)block;",
    ),
    fault(
        "lists: blocks are multiplied before they have arrived",
        On::Lists,
        "      barrier_wait(barriers.full(stage), parity_of(step));\n",
        "",
    ),
    fault(
        "lists: the producer does not wait for a free stage",
        On::Lists,
        "      barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);\n      ring",
        "      ring",
    ),
    fault(
        "lists: an item is written behind the arrival",
        On::Lists,
        "      ring[stage] = item;\n      barrier_expect(barriers.full(stage), STAGE);",
        "      barrier_expect(barriers.full(stage), STAGE);\n      ring[stage] = item;",
    ),
    fault(
        "lists: half of the bytes are expected",
        On::Lists,
        "barrier_expect(barriers.full(stage), STAGE);",
        "barrier_expect(barriers.full(stage), STAGE / 2);",
    ),
    fault(
        "lists: a free stage needs the arrival of one warp",
        On::Lists,
        "barrier_init(barriers.empty(s), WARPS);",
        "barrier_init(barriers.empty(s), 1);",
    ),
    fault(
        "lists: blocks are freed before they are multiplied",
        On::Lists,
        "      const u32 bits = uniform((int)(item >> 32));",
        "      __syncwarp();\n      if (lane == 0) barrier_arrive(barriers.empty(stage));\n      const u32 bits = uniform((int)(item >> 32));",
    ),
    fault(
        "lists: every tile begins at the first stage",
        On::Lists,
        "step = consumer.consume(tile, step);",
        "consumer.consume(tile, step);",
    ),
    fault(
        "lists: barriers are used before they are there",
        On::Lists,
        "  __syncthreads();\n  const int warp = threadIdx.x / 32;",
        "  const int warp = threadIdx.x / 32;",
    ),
    fault("lists: barriers are not fenced for TMA", On::Lists, "    barrier_init_fence();\n", ""),
    fault(
        "lists: consumers take more registers than there are",
        On::Lists,
        "CONSUMER_REGISTERS = 232;",
        "CONSUMER_REGISTERS = 240;",
    ),
    // Lanes need not meet in front of an arrival: they have multiplied together, or read the item together, behind their reads.
];

/// Of the gradients.
pub const BACKWARD: &[Fault] = &[
    fault(
        "lists: blocks are multiplied before they have arrived, queries",
        On::Lists,
        "      barrier_wait(barriers.full(stage), parity_of(step));\n      const u64 item",
        "      const u64 item",
    ),
    fault(
        "lists: parts are numbered before all have counted",
        On::Lists,
        "  sums[256 + thread] = slots;\n  __syncthreads();",
        "  sums[256 + thread] = slots;",
    ),
    fault(
        "lists: rows are multiplied before they have arrived",
        On::Lists,
        "    barrier_wait(barriers.full(stage), parity_of(step));\n    clear(s);",
        "    clear(s);",
    ),
    fault(
        "lists: loaders do not wait for a free stage",
        On::HeadsOfLists,
        "    barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);\n#pragma",
        "#pragma",
    ),
    fault(
        "lists: rows are handed over while they are copied",
        On::Lists,
        "    arrive_with_copies(barriers.full(stage));",
        "    barrier_arrive(barriers.full(stage));",
    ),
    fault(
        "lists: limits are handed over by copies",
        On::Lists,
        "    barrier_arrive(barriers.full(stage));\n  }\n  wait",
        "    arrive_with_copies(barriers.full(stage));\n  }\n  wait",
    ),
    fault(
        "lists: a step needs the arrivals of copies alone",
        On::Lists,
        "barrier_init(barriers.full(s), 2 * LOADERS);",
        "barrier_init(barriers.full(s), LOADERS);",
    ),
    fault(
        "lists: a free stage needs one arrival more than there are",
        On::HeadsOfLists,
        "barrier_init(barriers.empty(s), TEAM);",
        "barrier_init(barriers.empty(s), TEAM + 1);",
    ),
    fault(
        "lists: the block is multiplied before it is there",
        On::Lists,
        "  barrier_wait(begun, 0);\n",
        "",
    ),
    fault(
        "lists: the block is handed over while it is copied",
        On::Lists,
        "  arrive_with_copies(begun);",
        "  barrier_arrive(begun);",
    ),
    fault(
        "lists: the block needs more arrivals than there are",
        On::Lists,
        "barrier_init(begun, THREADS);",
        "barrier_init(begun, THREADS + 32);",
    ),
    fault(
        "lists: barriers are used before they are there, keys",
        On::Lists,
        "  __syncthreads();\n  load_block(params, work, params.key,",
        "  load_block(params, work, params.key,",
    ),
    fault(
        "lists: sums are handed over where others still read rows",
        On::Lists,
        "      named_sync(1, 32 * WARPS);\n      if (team == t)",
        "      if (team == t)",
    ),
    fault(
        "lists: sums are taken before they are handed over",
        On::Lists,
        "      named_sync(1, 32 * WARPS);\n      if (team == 0)",
        "      if (team == 0)",
    ),
    fault(
        "lists: rows are freed before they are multiplied",
        On::HeadsOfLists,
        "    clear(s);\n    clear(dp);\n#pragma unroll\n    for (int k = 0; k < DIM / 16; k++) {",
        "    __syncwarp();\n    if (lane == 0) barrier_arrive(barriers.empty(stage));\n    clear(s);\n    clear(dp);\n#pragma unroll\n    for (int k = 0; k < DIM / 16; k++) {",
    ),
];
