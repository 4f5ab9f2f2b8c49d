//! Faults of the backward kernels.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    // Waits and phases.
    fault(
        "columns are multiplied before they have arrived",
        On::Plane,
        "      if (i + TURN < high) wait_columns(step + i + TURN);\n",
        "",
    ),
    fault(
        "the first columns are multiplied before they have arrived",
        On::Line,
        "        wait_columns(step + low);\n",
        "",
    ),
    fault(
        "the producer does not wait for free rows",
        On::Line,
        "    if constexpr (!EARLY) barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);\n",
        "",
    ),
    fault(
        "the producer finds a tile and does not wait for free rows",
        On::Line,
        "    if constexpr (EARLY) barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);\n",
        "",
    ),
    fault(
        "the producer does not wait for free columns",
        On::Plane,
        "barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);",
        "",
    ),
    fault(
        "rows have parities that change with every tile",
        On::Line,
        "return slot / ROW_BUFFERS & 1;",
        "return slot & 1;",
    ),
    fault(
        "the dP of a step is taken before it is there",
        On::Plane,
        "        wait_next_columns(i);\n        wgmma_wait<1>();",
        "        wait_next_columns(i);\n        wgmma_wait<2>();",
    ),
    fault(
        "sums are written before they are there",
        On::Line,
        "          wgmma_wait<0>();\n          pin(first);\n        }\n        release_columns",
        "          pin(first);\n        }\n        release_columns",
    ),
    // Arrivals.
    fault(
        "columns are freed before they are multiplied",
        On::Plane,
        "      aim(i + 1);\n      wgmma_wait<is_early ? 1 : 0>();\n      pin(scores);\n      if (!is_first) release_columns(step + i - TURN);",
        "      aim(i + 1);\n      if (!is_first) release_columns(step + i - TURN);\n      wgmma_wait<is_early ? 1 : 0>();\n      pin(scores);",
    ),
    fault(
        "lanes have not read the rows that their warp frees",
        On::LongLine,
        "lane, row_second_fragments);\n    if constexpr (SHARED_ROWS) return;\n    __syncwarp();",
        "lane, row_second_fragments);",
    ),
    fault(
        "the bytes of the statistics are not expected",
        On::Plane,
        "* ROWS * SWIZZLE + STATISTICS_STAGE;",
        "* ROWS * SWIZZLE;",
    ),
    fault(
        "a tile is described where the one before still is",
        On::Line,
        "TILE_SLOTS = EARLY ? 4 : 2 * ROW_BUFFERS;",
        "TILE_SLOTS = EARLY ? 2 : ROW_BUFFERS;",
    ),
    fault(
        "a stage is not freed at the end of a pass",
        On::Plane,
        "        release_columns(step + last);\n      }",
        "      }",
    ),
    // Fences and groups.
    fault(
        "columns of a step are not filled up to a product with zeros, backward",
        On::Plane,
        "ROW_BOX < 64 || ROWS < STAGE_ROWS",
        "ROW_BOX < 64",
    ),
    // Weights of columns that no step has may be any number: such columns are zeros.
    fault(
        "the second set of slots has the coordinates of the first, backward",
        On::Plane,
        "slot_coordinate(16 * set + lane % 4 * 4)",
        "slot_coordinate(lane % 4 * 4)",
    ),
    fault(
        "the table of the mask is not fenced, backward",
        On::Plane,
        "    shared_proxy_fence();\n",
        "",
    ),
    fault(
        "no fence before dS K",
        On::Plane,
        "    wgmma_fence();\n#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_first",
        "#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_first",
    ),
    fault(
        "no fence before P dout",
        On::Line,
        "    wgmma_fence();\n#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_second",
        "#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_second",
    ),
    fault(
        "dP is not committed",
        On::Plane,
        "    wgmma_commit();\n  }\n\n  // first += dS K or dS^T Q",
        "  }\n\n  // first += dS K or dS^T Q",
    ),
    fault(
        "the mask is written while a product reads it, backward",
        On::Plane,
        "      aim(i + 1);\n      wgmma_wait<is_early",
        "      aim(i + 1);\n      fire(false);\n      wgmma_wait<is_early",
    ),
    fault(
        "slopes are written while a product reads them",
        On::Plane,
        "      if (WITH_FIRST && !is_first) accumulate_first(step + i - TURN);\n      begin_scores(step + i);",
        "      if (WITH_FIRST && !is_first) accumulate_first(step + i - TURN);\n      if constexpr (WITH_FIRST) slopes[0] = 0;\n      begin_scores(step + i);",
    ),
    // Descriptors and layouts.
    fault(
        "the descriptor's stride is that of four rows, backward",
        On::Line,
        "swizzled(base() + SECOND_OFFSET, 16, 8 * SWIZZLE)",
        "swizzled(base() + SECOND_OFFSET, 16, 4 * SWIZZLE)",
    ),
    fault(
        "the chunks of dout are as far as they have bytes in a row",
        On::LongLine,
        "swizzled(base() + SECOND_OFFSET, STAGE_ROWS * SWIZZLE, 8 * SWIZZLE)",
        "swizzled(base() + SECOND_OFFSET, 128, 8 * SWIZZLE)",
    ),
    fault(
        "a step of k is half as far",
        On::Line,
        "weights[4 * k + 3], columns.at(k * SWIZZLE));",
        "weights[4 * k + 3], columns.at(k * 64));",
    ),
    fault(
        "rows of both tensors overlap",
        On::Plane,
        "SECOND_TILE_OFFSET = ROW_TILES * FIRST_TILE;",
        "SECOND_TILE_OFFSET = ROW_TILES * FIRST_TILE - 1024;",
    ),
    fault(
        "the statistics are one stage too few",
        On::LongPlane,
        "TILE_OFFSET = STATISTICS_OFFSET + STAGES * STATISTICS_STAGE;",
        "TILE_OFFSET = STATISTICS_OFFSET + (STAGES - 1) * STATISTICS_STAGE;",
    ),
    fault(
        "barriers lie behind the shared memory",
        On::Plane,
        "BARRIER_OFFSET = TILE_OFFSET + TILE_SLOTS * TILES * 128;",
        "BARRIER_OFFSET = TILE_OFFSET + TILE_SLOTS * TILES * 128 + 64;",
    ),
    fault(
        "a lane reads the delta of its neighbor",
        On::Plane,
        "lane % 4 * 32 + 12;",
        "(lane + 1) % 4 * 32 + 12;",
    ),
    // A bias, and its sums.
    fault(
        "bias: a lane's slots of 16 bits lie as those of 8 bits do",
        On::Bias,
        "WIDE_MASK ? k % 8 / 2 * 4 + k / 8 * 2 + k % 2 : k % (16 * SETS)",
        "k % 16",
    ),
    fault(
        "bias: rows that share entries are taken to lie alike",
        On::Bias,
        "table_column(i / 4 * 8 + i % 2) - table_row(i / 2 % 2 * 8)",
        "table_column(i / 4 * 8 + i % 2)",
    ),
    fault(
        "bias: sums are added up while others still add to them",
        On::Bias,
        "    named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);\n    if (SUM_BIAS && known >= 0)",
        "    if (SUM_BIAS && known >= 0)",
    ),
    fault(
        "bias: sums are added to while others still add them up",
        On::Bias,
        "table.fill(params.bias, head, params.scale_log2);\n    named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);",
        "table.fill(params.bias, head, params.scale_log2);",
    ),
    fault(
        "bias: sums are set to zero while others point at them",
        On::Bias,
        "0.f;\n    __syncthreads();\n    if (threadIdx.x >= 128 && threadIdx.x % 32 < SUM_SLOTS)",
        "0.f;\n    if (threadIdx.x >= 128 && threadIdx.x % 32 < SUM_SLOTS)",
    ),
    fault(
        "bias: slots are emptied before all lanes have put their slopes",
        On::OneSlot,
        "    lane = opaque(lane);\n    __syncwarp();",
        "    lane = opaque(lane);",
    ),
    // Lanes meet behind adding from a slot, ahead of clearing it, and in the vote on what they have read: either is enough.
    fault(
        "bias: rows are taken to see what those of the tile before have seen",
        On::Bias,
        " && views.x[lane / 4] == x && views.z == z && views.y == y;",
        ";",
    ),
    fault(
        "bias: of blocks that share a slot the farther one is taken for the nearer",
        On::Bias,
        "near < views.x[x] :",
        "false :",
    ),
    fault(
        "bias: of lines that share a slot the farther one is taken for the nearer",
        On::Bias,
        "(first < least ?",
        "(false ?",
    ),
    // Where slots are pointed at, lanes meet twice, behind emptying and behind pointing: either is enough.
    fault(
        "bias: the last sums are not added up",
        On::Bias,
        "      consumer.find_bias(launch.any(), table, -1);\n",
        "",
    ),
    // Numbers and windows.
    fault(
        "delta is added",
        On::Plane,
        "(products[4 * j + e] - mean[e]);",
        "(products[4 * j + e] + mean[e]);",
    ),
    fault(
        // Each split has one of two.
        "heads that share keys are two",
        On::Plane,
        "return INVERSE ? params.group_size / COLUMN_H : 1;",
        "return INVERSE ? 2 : 1;",
    ),
    fault(
        "a key is seen by one query too few",
        On::Line,
        "w.end = first_with_leader<Strided>(axis, row + 1 + behind, half);",
        "w.end = first_with_leader<Strided>(axis, row + behind, half);",
    ),
    fault(
        "a column is masked too many, backward",
        On::Line,
        "8 * j + e - low_b >= size_b",
        "8 * j + e - low_b + 1 >= size_b",
    ),
    fault(
        "delta leaves out the logsumexp's gradient",
        On::Line,
        "is_blind ? 0.f : product - dlse;",
        "is_blind ? 0.f : product;",
    ),
    fault(
        "lanes of delta do not meet",
        On::Space,
        "int mask = LANES / 2; mask; mask >>= 1",
        "int mask = LANES / 4; mask; mask >>= 1",
    ),
    fault(
        "statistics are written one place further",
        On::Space,
        "at[1]) * extent[2].value + at[2];",
        "at[1]) * extent[2].value + at[2] + 1;",
    ),
    // A taken tile that is taken again is written again, with the same bits: what is left of the counter in memory harms nobody.
    // Statistics that a kernel makes itself.
    fault(
        "pieces of a row do not meet",
        On::LongLine,
        "sums[i] += sums[i + half];",
        "sums[i] += 0.f;",
    ),
    fault(
        "lanes of a row do not meet",
        On::Plane,
        "int mask = 2; mask; mask >>= 1",
        "int mask = 1; mask; mask >>= 1",
    ),
    fault(
        "statistics are not left to the kernel for keys",
        On::Plane,
        "if (lane % 4 == 0) statistics_of",
        "if (lane % 4 == 4) statistics_of",
    ),
    fault(
        "the kernel for keys does not wait for statistics",
        On::Plane,
        "        if (INVERSE && step == 0) wait_for_launch_ahead();\n",
        "",
    ),
    fault(
        "statistics of the first step are not waited for",
        On::Plane,
        "if (INVERSE && step == 0) wait_for_launch_ahead();",
        "if (INVERSE && step == 1) wait_for_launch_ahead();",
    ),
    // That consumers wait is in `early.rs`: what they read are statistics of rows that are computed again.
    fault(
        "rows of the output are another head's",
        On::Plane,
        "chunks_of(DIM_V), 64, at, own.head);\n",
        "chunks_of(DIM_V), 64, at, 0);\n",
    ),
];
