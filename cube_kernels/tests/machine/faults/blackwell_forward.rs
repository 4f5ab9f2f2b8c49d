//! Faults of Blackwell's forward kernel.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    // Waits and phases.
    fault(
        "sm_100: keys are multiplied before they have arrived",
        On::Plane,
        "        if (s == 0) barrier_wait(b.kv_full(key.stage), key.parity);\n",
        "",
    ),
    fault(
        "sm_100: values are multiplied before they have arrived",
        On::Plane,
        "        barrier_wait(b.kv_full(value.stage), value.parity);\n",
        "",
    ),
    fault(
        "sm_100: queries are multiplied before they have arrived",
        On::Line,
        "        if (i < 0) barrier_wait(b.q_full(s), tiles & 1);\n",
        "",
    ),
    fault(
        "sm_100: the wait for queries has one parity",
        On::Plane,
        "barrier_wait(b.q_full(s), tiles & 1)",
        "barrier_wait(b.q_full(s), 0)",
    ),
    fault(
        "sm_100: weights are multiplied before they are there",
        On::Plane,
        "          barrier_wait(b.weights_full(s), weights_parity[s]);\n",
        "",
    ),
    fault(
        "sm_100: the wait for weights has the wrong parity",
        On::Line,
        "barrier_wait(b.weights_full(s), weights_parity[s])",
        "barrier_wait(b.weights_full(s), weights_parity[s] ^ 1)",
    ),
    fault(
        "sm_100: the producer does not wait for a free stage for keys",
        On::LongLine,
        "      barrier_wait(b.kv_empty(place.stage), place.parity ^ 1);\n      barrier_expect(full, K_BYTES);",
        "      barrier_expect(full, K_BYTES);",
    ),
    fault(
        "sm_100: the producer does not wait for a free stage for values",
        On::LongLine,
        "      barrier_wait(b.kv_empty(place.stage), place.parity ^ 1);\n      barrier_expect(full, V_BYTES);",
        "      barrier_expect(full, V_BYTES);",
    ),
    fault(
        "sm_100: the ring's parity does not change",
        On::LongLine,
        "{ stage = 0; parity ^= 1; }",
        "{ stage = 0; }",
    ),
    fault(
        "sm_100: the producer does not wait for free queries",
        On::Plane,
        "      barrier_wait(b.q_empty(s), q_parity);\n",
        "",
    ),
    fault(
        "sm_100: a tile is described where the one before still is",
        On::Plane,
        "    barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);\n    decode_tile",
        "    decode_tile",
    ),
    fault(
        "sm_100: scores are read before they are there",
        On::Plane,
        "        barrier_wait(b.scores_full(s), parity);\n",
        "",
    ),
    fault(
        "sm_100: the wait for scores has one parity",
        On::Line,
        "for (int i = low; i < high; i++, parity ^= 1)",
        "for (int i = low; i < high; i++)",
    ),
    // A factor that is written without a wait for the weights of the step before harms nobody: there are scores of this step only since
    // those weights, to whose barrier the correction has arrived behind its read.
    fault(
        "sm_100: a factor is read before it is there",
        On::Plane,
        "        barrier_wait(b.scale_full(s), parity[s]);\n",
        "",
    ),
    fault(
        "sm_100: a row's sum is read before it is there",
        On::Plane,
        "      barrier_wait(b.final_full(s, count & 1), count >> 1 & 1);\n",
        "",
    ),
    fault(
        "sm_100: sums are read before they are there",
        On::Plane,
        "      barrier_wait(b.out_full(s), count & 1);\n",
        "",
    ),
    // Arrivals and commits.
    fault(
        "sm_100: values are freed while products read them",
        On::LongLine,
        "if (has_sums) mma_commit(b.kv_empty(value.stage));",
        "if (has_sums) barrier_arrive(b.kv_empty(value.stage));",
    ),
    fault(
        "sm_100: keys are freed while products read them",
        On::LongLine,
        "mma_commit(b.kv_empty(key.stage));",
        "barrier_arrive(b.kv_empty(key.stage));",
    ),
    // Queries that are freed by an arrival at the end of a tile harm nobody: the weights of its last scores were waited for by then, and
    // with them those who had waited for the scores.
    fault(
        "sm_100: scores are said to be there when their products are issued",
        On::Line,
        "mma_commit(b.scores_full(s));",
        "barrier_arrive(b.scores_full(s));",
    ),
    fault(
        "sm_100: the same of sums",
        On::Line,
        "mma_commit(b.out_full(s));",
        "barrier_arrive(b.out_full(s));",
    ),
    fault(
        "sm_100: a stage is not freed",
        On::LongLine,
        "        mma_commit(b.kv_empty(key.stage));\n",
        "",
    ),
    // In front of the arrival for weights lanes need not meet: their stores were waited for by all of the warp at once.
    fault(
        "sm_100: lanes have not written the factors that their warp hands over",
        On::Plane,
        "        __syncwarp();\n        if (lane == 0) barrier_arrive(b.scale_full(s));",
        "        if (lane == 0) barrier_arrive(b.scale_full(s));",
    ),
    fault(
        "sm_100: weights need no arrival of the correction",
        On::Sharp,
        "barrier_init(weights_full(s), 2 * WARPS_OF_TILE);",
        "barrier_init(weights_full(s), WARPS_OF_TILE);",
    ),
    fault(
        "sm_100: half of the bytes are expected",
        On::Plane,
        "barrier_expect(full, K_BYTES);",
        "barrier_expect(full, K_BYTES / 2);",
    ),
    fault("sm_100: barriers are not fenced for TMA", On::Line, "    barrier_init_fence();\n", ""),
    // Tensor memory: fences, waits, columns, lanes.
    fault(
        "sm_100: no fence behind the wait for scores",
        On::Line,
        "        tmem_fence_after();\n        load_scores(x, scores);",
        "        load_scores(x, scores);",
    ),
    fault(
        "sm_100: no fence in front of the arrival of weights",
        On::Line,
        "        tmem_wait_stores();\n        tmem_fence_before();\n",
        "        tmem_wait_stores();\n",
    ),
    fault(
        "sm_100: weights are handed over while they are stored",
        On::Line,
        "        tmem_wait_stores();\n        tmem_fence_before();\n",
        "        tmem_fence_before();\n",
    ),
    fault(
        "sm_100: no fence in front of the products of weights",
        On::Line,
        "          tmem_fence_after();\n          add_weighted",
        "          add_weighted",
    ),
    fault(
        "sm_100: no fence in front of rescaling",
        On::Sharp,
        "          tmem_fence_after();\n          rescale_sums",
        "          rescale_sums",
    ),
    fault(
        "sm_100: no fence behind rescaling",
        On::Sharp,
        "  tmem_wait_stores();\n  tmem_fence_before();\n}",
        "  tmem_wait_stores();\n}",
    ),
    fault(
        "sm_100: rescaled sums are still stored",
        On::Sharp,
        "  tmem_wait_stores();\n  tmem_fence_before();\n}",
        "  tmem_fence_before();\n}",
    ),
    fault(
        "sm_100: no fence in front of reading sums",
        On::Line,
        "      barrier_wait(b.out_full(s), count & 1);\n      tmem_fence_after();\n",
        "      barrier_wait(b.out_full(s), count & 1);\n",
    ),
    fault(
        "sm_100: no fence behind reading sums",
        On::Plane,
        "  tmem_fence_before();\n  if (exists) params.lse",
        "  if (exists) params.lse",
    ),
    fault(
        "sm_100: scores are used while they are loaded",
        On::Line,
        "  tmem_load(x + 32, from + 32);\n  tmem_wait_loads();\n",
        "  tmem_load(x + 32, from + 32);\n",
    ),
    fault(
        "sm_100: the second half of the weights is stored 32 columns further",
        On::Line,
        "weigh_half(softmax, x, params.scale_log2, weights + 32);",
        "weigh_half(softmax, x, params.scale_log2, weights + 64);",
    ),
    fault(
        "sm_100: products take weights 32 columns further",
        On::Line,
        "tmem + weights_column(s), v +",
        "tmem + weights_column(s) + 32, v +",
    ),
    fault(
        "sm_100: the sums of both tiles overlap",
        On::LongLine,
        "return 256 + 128 * s;",
        "return 256 + 64 * s;",
    ),
    fault(
        "sm_100: half of tensor memory is allocated",
        On::Line,
        "tmem_alloc(b.tensor_memory(), 512);",
        "tmem_alloc(b.tensor_memory(), 256);",
    ),
    fault(
        "sm_100: warps reach for lanes of others",
        On::Line,
        "threadIdx.x % 128 / 32 * 32 << 16",
        "threadIdx.x % 64 / 32 * 32 << 16",
    ),
    fault(
        "sm_100: a whole warp issues products",
        On::Line,
        "if (warp == MULTIPLYING && elect_one())",
        "if (warp == MULTIPLYING)",
    ),
    fault(
        "sm_100: tensor memory is freed while results are read",
        On::Line,
        "  tmem_fence_before();\n  __syncthreads();\n  if (warp == MULTIPLYING) {\n    tmem_fence_after();\n    tmem_free",
        "  if (warp == MULTIPLYING) {\n    tmem_free",
    ),
    fault(
        "sm_100: the softmax takes more registers than there are",
        On::Line,
        "give_registers<512 - 2 * SOFTMAX_REGISTERS - CORRECTION_REGISTERS>();",
        "give_registers<520 - 2 * SOFTMAX_REGISTERS - CORRECTION_REGISTERS>();",
    ),
    // Descriptors and instructions.
    fault(
        "sm_100: the descriptor's stride is that of four rows",
        On::Line,
        "swizzled(address, 16, 1024)",
        "swizzled(address, 16, 512)",
    ),
    fault(
        "sm_100: the values' descriptor has half of the distance of its chunks",
        On::LongLine,
        "swizzled(address, CHUNK, 1024)",
        "swizzled(address, CHUNK / 2, 1024)",
    ),
    fault("sm_100: the swizzle is that of 64 bytes", On::Line, "(u64)2 << 61", "(u64)4 << 61"),
    fault("sm_100: the descriptor lacks its version", On::Line, " | (u64)1 << 46 |", " |"),
    fault(
        "sm_100: the other operand is transposed",
        On::Line,
        "? 1u << 16 : 0u",
        "? 1u << 15 : 0u",
    ),
    fault(
        "sm_100: half of the columns are multiplied",
        On::Line,
        "(u32)(n >> 3) << 17",
        "(u32)(n >> 4) << 17",
    ),
    fault(
        "sm_100: a step of k is twice as far",
        On::Line,
        "bytes_on(i / 4 * CHUNK + i % 4 * 32)",
        "bytes_on(i / 4 * CHUNK + i % 4 * 64)",
    ),
    fault(
        "sm_100: a step over summed rows is half as far",
        On::Line,
        "bytes_on(i * 2048)",
        "bytes_on(i * 1024)",
    ),
    fault(
        "sm_100: the first product of a tile adds to what there was",
        On::Line,
        "!is_first || i > 0);",
        "true);",
    ),
    // Softmax and masks.
    fault(
        "sm_100: sums are not rescaled",
        On::Sharp,
        "if (i > range[s].low && __any_sync(~0u, factor < 1.f))",
        "if (i < 0)",
    ),
    fault("sm_100: a row's sum is not rescaled", On::Sharp, "    sum *= rescale;\n", ""),
    fault(
        "sm_100: the second half is masked like the first",
        On::Line,
        "seen.apply(x, 2, NEG_INF);",
        "seen.apply(x, 0, NEG_INF);",
    ),
    fault(
        "sm_100: a block counts as whole that begins too early",
        On::Line,
        "whole = whole && start[a] <= 0 && end[a]",
        "whole = whole && end[a]",
    ),
    fault(
        "sm_100: steps of additional tokens are left out",
        On::Space,
        "range.high = work.tile.steps + additional_steps(additional);",
        "range.high = work.tile.steps;",
    ),
];
