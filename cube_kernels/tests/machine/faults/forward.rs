//! Faults of the forward kernel.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    // Waits and phases.
    fault(
        "keys are multiplied before they have arrived",
        On::Plane,
        "        wait_key(first + i);\n        wait_turn();",
        "        wait_turn();",
    ),
    fault(
        "values are multiplied before they have arrived",
        On::Plane,
        "        if constexpr (!IN_HALVES) wait_value(first + i - 1);\n",
        "",
    ),
    fault(
        "values are multiplied before they have arrived, between halves of the weights",
        On::Halves,
        "      if constexpr (IN_HALVES) wait_value(first + i);\n",
        "",
    ),
    fault(
        "half of the weights are scores",
        On::Halves,
        "        weigh_rest();\n        pack_weights",
        "        pack_weights",
    ),
    fault(
        "the last values are multiplied before they have arrived",
        On::Line,
        "      if constexpr (!IN_HALVES) wait_value(first + high - 1);\n",
        "",
    ),
    fault(
        "the wait for keys has the wrong parity",
        On::Line,
        "barriers.k_full(stage_of(step)), parity_of(step))",
        "barriers.k_full(stage_of(step)), parity_of(step) ^ 1)",
    ),
    fault(
        "parities change with every step",
        On::Line,
        "return step / STAGES & 1;",
        "return step & 1;",
    ),
    fault(
        "the producer does not wait for free keys",
        On::Line,
        "barrier_wait(barriers.k_empty(stage), parity_of(step) ^ 1);",
        "",
    ),
    fault(
        "the producer does not wait for free values",
        On::Plane,
        "barrier_wait(barriers.v_empty(stage), parity_of(step) ^ 1);",
        "",
    ),
    fault(
        "the producer does not wait for free queries",
        On::Plane,
        "barrier_wait(barriers.q_empty(tiles), parity_of_rows(tiles) ^ 1);\n    next[tiles % TILE_SLOTS] = tile;",
        "next[tiles % TILE_SLOTS] = tile;",
    ),
    fault(
        "consumers do not wait for queries",
        On::Plane,
        "barrier_wait(barriers.q_full(tiles), parity_of_rows(tiles));",
        "if (tiles == 0) barrier_wait(barriers.q_full(tiles), 0);",
    ),
    // Pipelines that share a CTA.
    fault(
        "teams: the producer does not wait for free queries",
        On::Teams,
        "barrier_wait(barriers.q_empty(tiles), parity_of_rows(tiles) ^ 1);\n    next[tiles % TILE_SLOTS] = tile;",
        "next[tiles % TILE_SLOTS] = tile;",
    ),
    fault(
        "teams: the parity of rows changes with every tile",
        On::Teams,
        "return tile / ROW_BUFFERS & 1;",
        "return tile & 1;",
    ),
    fault(
        "teams: rows are those of the tile before",
        On::Teams,
        "query_matrix.at(tiles % ROW_BUFFERS * (WARPGROUPS * Q_TILE >> 4)",
        "query_matrix.at((tiles + 1) % ROW_BUFFERS * (WARPGROUPS * Q_TILE >> 4)",
    ),
    fault(
        "teams: the tile is freed before its results are written",
        On::Teams,
        "    if (!idle) finish(params, tile);\n    if constexpr (ROW_BUFFERS > 1) {\n      // The tile stays with its rows.\n      __syncwarp();\n      release(barriers.q_empty(tiles));\n    }\n",
        "    __syncwarp();\n    release(barriers.q_empty(tiles));\n    if (!idle) finish(params, tile);\n",
    ),
    // That lanes meet before their warp frees a tile is said by the vote on broken rows as well, unless some are.
    fault(
        "teams: a tile's steps are read when it has been freed",
        On::Teams,
        "step += ROW_BUFFERS > 1 ? steps : uniform(tile.steps)",
        "step += uniform(tile.steps)",
    ),
    fault(
        "teams: rows are not freed",
        On::Teams,
        "      __syncwarp();\n      release(barriers.q_empty(tiles));\n    }\n",
        "    }\n",
    ),
    fault(
        "teams: a pipeline's values reach into the next one's rows",
        On::Teams,
        "TEAM_BYTES = V_OFFSET + STAGES * V_STAGE;",
        "TEAM_BYTES = V_OFFSET + (STAGES - 1) * V_STAGE;",
    ),
    fault(
        "teams: all have the tiles of the first",
        On::Teams,
        "blockIdx.x + gridDim.x * team : blockIdx.x",
        "blockIdx.x : blockIdx.x",
    ),
    fault(
        "teams: a pipeline finds the tile of another",
        On::Teams,
        "+ team * TILES * TILE_SLOTS;",
        "+ (role == 0 ? team : 0) * TILES * TILE_SLOTS;",
    ),
    fault(
        "teams: barriers of one pipeline are ready",
        On::Teams,
        "for (int team = 0; team < TEAMS; team++) {",
        "for (int team = 0; team < 1; team++) {",
    ),
    // Arrivals.
    // Keys of a later step that are freed before they are multiplied harm nobody: the producer waits for the values of the step before
    // ahead of loading in their place, and those are freed behind this product.
    fault(
        "the first keys are freed before they are multiplied",
        On::Line,
        "      wgmma_wait<0>();\n      pin(scores);\n      release_key(first + low);",
        "      release_key(first + low);\n      wgmma_wait<0>();\n      pin(scores);",
    ),
    fault(
        "values are freed before they are multiplied",
        On::Line,
        "        wgmma_wait<0>();\n        pin(out);\n        release_value(first + i - 1);",
        "        release_value(first + i - 1);\n        wgmma_wait<0>();\n        pin(out);",
    ),
    fault(
        "a free stage needs the arrival of one warp",
        On::Line,
        "barrier_init(barriers.k_empty(i), CONSUMER_WARPS);",
        "barrier_init(barriers.k_empty(i), 1);",
    ),
    fault(
        "a free stage needs one arrival more than there are",
        On::Line,
        "barrier_init(barriers.v_empty(i), CONSUMER_WARPS);",
        "barrier_init(barriers.v_empty(i), CONSUMER_WARPS + 1);",
    ),
    fault("values are not freed", On::Plane, "        release_value(first + i - 1);\n", ""),
    fault(
        "lanes have not read the queries that their warp frees",
        On::Line,
        "lane / 4, lane, query);\n    __syncwarp();",
        "lane / 4, lane, query);",
    ),
    fault(
        "half of the bytes are expected",
        On::Plane,
        "barrier_expect(barriers.k_full(stage), K_BYTES);",
        "barrier_expect(barriers.k_full(stage), K_BYTES / 2);",
    ),
    fault(
        "more bytes are expected than are loaded",
        On::Plane,
        "barrier_expect(barriers.v_full(stage), V_BYTES);",
        "barrier_expect(barriers.v_full(stage), V_BYTES + 16);",
    ),
    fault(
        "the first turn is nobody's",
        On::LongPlane,
        "if (role == WARPGROUPS) consumer.pass_turn();",
        "",
    ),
    // Synchronisation of threads, and fences.
    fault(
        "barriers are used before they are there",
        On::Line,
        "  __syncthreads();\n  const int team =",
        "  const int team =",
    ),
    fault("barriers are not fenced for TMA", On::Line, "    barrier_init_fence();\n", ""),
    fault(
        "columns of a step are not filled up to a product with zeros, forward",
        On::Teams,
        "ROW_BOX < 64 || ROWS < STAGE_ROWS",
        "ROW_BOX < 64",
    ),
    // Weights of columns that no step has may be any number: such columns are zeros.
    fault(
        "the second set of slots has the coordinates of the first, forward",
        On::Teams,
        "slot_coordinate(16 * set + lane % 4 * 4)",
        "slot_coordinate(lane % 4 * 4)",
    ),
    fault("the table of the mask is not fenced", On::Plane, "    shared_proxy_fence();\n", ""),
    fault(
        "no fence before the scores' product",
        On::Plane,
        "    wgmma_fence();\n    if constexpr (MASK == ONE_HOT)\n",
        "    if constexpr (MASK == ONE_HOT)\n",
    ),
    fault(
        "no fence before the values' product",
        On::Line,
        "    wgmma_fence();\n#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_values",
        "#pragma unroll\n    for (int k = 0; k < FRAGMENTS / 4; k++)\n      wgmma_values",
    ),
    fault(
        "the scores' product is not committed",
        On::Plane,
        "    wgmma_commit();\n  }\n\n  // out += P V",
        "  }\n\n  // out += P V",
    ),
    fault(
        "the wait leaves the scores' product in flight",
        On::Plane,
        "        wgmma_wait<1>();\n        pin(scores);",
        "        wgmma_wait<2>();\n        pin(scores);",
    ),
    fault(
        "weights are packed while a product reads those before",
        On::Plane,
        "        wgmma_wait<0>();\n        pin(out);\n        release_value(first + i - 1);\n        weigh_rest();\n        pack_weights(scale_of(params, scale_log2));",
        "        weigh_rest();\n        pack_weights(scale_of(params, scale_log2));\n        wgmma_wait<0>();\n        pin(out);\n        release_value(first + i - 1);",
    ),
    fault(
        "the mask is written while a product reads it",
        On::Plane,
        "        aim(i + 1);\n        wgmma_wait<1>();",
        "        aim(i + 1);\n        fire(false);\n        wgmma_wait<1>();",
    ),
    // Descriptors and layouts.
    fault(
        "the descriptor's stride is that of four rows",
        On::Line,
        "key_matrix = swizzled(shared + K_OFFSET, 16, 8 * SWIZZLE);",
        "key_matrix = swizzled(shared + K_OFFSET, 16, 4 * SWIZZLE);",
    ),
    fault(
        "the values' descriptor has half of the distance of its chunks",
        On::LongLine,
        "value_matrix = swizzled(shared + V_OFFSET, STAGE_ROWS * SWIZZLE, 8 * SWIZZLE);",
        "value_matrix = swizzled(shared + V_OFFSET, STAGE_ROWS * SWIZZLE / 2, 8 * SWIZZLE);",
    ),
    fault("the swizzle is another", On::Line, "SWIZZLE == 128 ? 1 : 2", "SWIZZLE == 128 ? 2 : 1"),
    fault(
        "the table's strides have changed places",
        On::Plane,
        "unswizzled(one_hot_columns, 128, 256)",
        "unswizzled(one_hot_columns, 256, 128)",
    ),
    fault(
        "a step of k is twice as far",
        On::Plane,
        "k / 4 * (STAGE_ROWS * SWIZZLE >> 4) + k % 4 * 2);",
        "k / 4 * (STAGE_ROWS * SWIZZLE >> 4) + k % 4 * 4);",
    ),
    fault(
        "the stage of the keys is that of the one before",
        On::Plane,
        "key_matrix.behind(stage_of(step) * (K_STAGE >> 4))",
        "key_matrix.behind(stage_of(step + STAGES - 1) * (K_STAGE >> 4))",
    ),
    fault("fragments are read without the swizzle", On::Plane, "(turned << 4)", "(column << 4)"),
    fault(
        "the values begin within the keys",
        On::Plane,
        "V_OFFSET = K_OFFSET + STAGES * K_STAGE;",
        "V_OFFSET = K_OFFSET + (STAGES - 1) * K_STAGE;",
    ),
    // Registers and parameters.
    fault("the producer keeps its registers", On::Line, "    give_registers();\n", ""),
    fault(
        "every query's head has keys of its own",
        On::Plane,
        "tile.head / params.group_size;",
        "tile.head;",
    ),
    // Windows and masks.
    fault(
        "windows are one too short",
        On::Line,
        "w.end = w.start + axis.kernel;",
        "w.end = w.start + axis.kernel - 1;",
    ),
    fault(
        "windows are one further",
        On::Plane,
        "leader - axis.kernel / 2, 0)",
        "leader - axis.kernel / 2 + 1, 0)",
    ),
    fault(
        "a column is masked too few",
        On::Line,
        "8 * j + e - low_a >= size_a",
        "8 * j + e - low_a > size_a",
    ),
    fault(
        "the one-hot mask begins a column later",
        On::Plane,
        "max_(0, end[set][r] - offset)",
        "max_(0, end[set][r] - offset + 8)",
    ),
    fault(
        "the one-hot mask stays that of the first step",
        On::Plane,
        "ADDITIONAL || moves(SETS > 1 ? i / 2 : 0)",
        "ADDITIONAL",
    ),
    fault(
        "walks stand still along axes of several blocks",
        On::Space,
        "a < FIRST_AXIS || ONE_BLOCK >> a & 1",
        "a < FIRST_AXIS || 7 >> a & 1",
    ),
    fault(
        "additional tokens are not masked",
        On::Space,
        "if (token + ROWS > additional)",
        "if (false)",
    ),
    fault(
        "sums of vectors are not multiplied",
        On::Sharp,
        "    for (int i = 0; i < N; i++) out[i] *= factor[i / 2 % 2];\n",
        "    ;\n",
    ),
    fault("sums of weights are not multiplied", On::Sharp, "      sum[r] *= factor[r];\n", ""),
    fault(
        "weights are not packed again",
        On::Sharp,
        "      softmax.raise(scores, out, scale);\n      pack_fragments(scores, weights);\n",
        "      softmax.raise(scores, out, scale);\n",
    ),
    fault(
        "rows share what one is multiplied by",
        On::Sharp,
        "for (int i = 0; i < SCORES; i++) s[i] *= factor[i / 2 % 2];",
        "for (int i = 0; i < SCORES; i++) s[i] *= factor[0];",
    ),
    fault(
        "a row's reference is that of a lane",
        On::Line,
        "for (int mask = 1; mask < 4; mask *= 2)\n#pragma unroll\n      for (int r = 0; r < 2; r++) most",
        "for (int mask = 1; mask < 2; mask *= 2)\n#pragma unroll\n      for (int r = 0; r < 2; r++) most",
    ),
    fault(
        "lanes decide alone whether they raise a reference",
        On::Sharp,
        "return __any_sync(~0u, has_large(bits[0] & watched[0]) || has_large(bits[1] & watched[1]));",
        "return has_large(bits[0] & watched[0]) || has_large(bits[1] & watched[1]);",
    ),
    fault(
        "the second sample's boxes are those of the first",
        On::Space,
        "    at[b][0] += tile.batch * space.batch_step;\n",
        "",
    ),
];
