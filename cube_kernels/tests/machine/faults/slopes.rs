//! Faults of slopes that a kernel for keys leaves in memory for one for queries.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "slopes: they are summed before they have arrived",
        On::Slopes,
        "      wait(first + i);\n      multiply(first + i);",
        "      multiply(first + i);",
    ),
    fault(
        "slopes: they are freed while products read them",
        On::Slopes,
        "      multiply(first + i);\n      release(barriers.empty(stage_of(first + i)));",
        "      release(barriers.empty(stage_of(first + i)));\n      multiply(first + i);",
    ),
    fault(
        "slopes: sums are read before they are there",
        On::Slopes,
        "    wgmma_commit();\n    wgmma_wait<0>();\n    pin(sums);",
        "    wgmma_commit();\n    pin(sums);",
    ),
    fault(
        "slopes: the producer does not wait for what is free",
        On::Slopes,
        "      barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);\n      barrier_expect(full, KEYS_STAGE",
        "      barrier_expect(full, KEYS_STAGE",
    ),
    fault(
        "slopes: a tile is described where one before still is",
        On::Slopes,
        "    barrier_wait(barriers.tile_empty(slot), parity_of_tile(slot) ^ 1);\n    tile.first",
        "    tile.first",
    ),
    fault(
        "slopes: a tile is read before it is described",
        On::Slopes,
        "      barrier_wait(barriers.tile_full(slot), parity_of_tile(slot));\n",
        "",
    ),
    fault(
        "slopes: their bytes are not expected",
        On::Slopes,
        "KEYS_STAGE + seeing * SLOPES_BLOCK",
        "KEYS_STAGE",
    ),
    fault(
        "slopes: those that nobody left are brought",
        On::Slopes,
        "        if (i < seen[w].low || i >= seen[w].high) continue;\n",
        "",
    ),
    fault(
        "slopes: pieces follow each other by the keys",
        On::Slopes,
        "SLOPES_PIECE, 2 * SLOPES_PIECE)",
        "2 * SLOPES_PIECE, SLOPES_PIECE)",
    ),
    fault(
        "slopes: blocks of keys begin where windows do",
        On::Slopes,
        "  tile.column[A] = tile.column[A] / column_extent(A) * column_extent(A);\n",
        "",
    ),
    fault(
        "slopes: the last blocks of keys have as many queries as others",
        On::Slopes,
        "last * (last - 1) / 2",
        "0",
    ),
    fault(
        "slopes: warpgroups leave theirs at one place",
        On::Slopes,
        "row_number(tile, own, keys);",
        "row_number(tile, 0, keys);",
    ),
    fault(
        "slopes: all heads of a group leave theirs at one place",
        On::Slopes,
        "const int head = tile.batch * params.heads + column_head(params, tile, pass);",
        "const int head = tile.batch * params.heads + column_head(params, tile, 0);",
    ),
    fault(
        "slopes: all blocks of a tile lie at one place",
        On::Slopes,
        "      if constexpr (RANK == 1) slopes_at += SLOPES_BLOCK / 4;\n",
        "",
    ),
    fault(
        "slopes: a warpgroup's first block is that of its CTA",
        On::Slopes,
        "        if constexpr (RANK == 1) queries[2] += low;\n",
        "",
    ),
    fault(
        "slopes: boxes of queries begin with who sees a key",
        On::BoxesOfSlopes,
        "  tile.column[A] = tile.column[A] / column_extent(A) * column_extent(A);\n",
        "",
    ),
    fault(
        "slopes: all boxes of a tile lie at one place",
        On::BoxesOfSlopes,
        "      block = coming_block;\n",
        "",
    ),
    fault(
        "slopes: boxes of a step lie where those of the coming one do",
        On::BoxesOfSlopes,
        "leave_slopes(slopes_at + (i64)block *",
        "leave_slopes(slopes_at + (i64)coming_block *",
    ),
    fault(
        "slopes: boxes are one place apart along each axis",
        On::BoxesOfSlopes,
        "coming_block += walk.at[a] * params.slopes.pitch[a];",
        "coming_block += walk.at[a];",
    ),
    fault(
        "slopes: lines of a ring overlap",
        On::BoxesOfSlopes,
        "number * slopes.keys[a] + place[a]",
        "number * (slopes.keys[a] - 1) + place[a]",
    ),
    fault(
        "slopes: all steps bring the first box",
        On::BoxesOfSlopes,
        "      blocks.follow(params.slopes, here, walk);\n",
        "",
    ),
    fault(
        "slopes: a walk runs on behind the end of a ring",
        On::BoxesOfSlopes,
        "ends ? 0 : place[a] + 1",
        "place[a] + 1",
    ),
    fault(
        "slopes: warpgroups have each other's boxes",
        On::BoxesOfSlopes,
        "(a == STACK ? warpgroup : 0)",
        "(a == STACK ? 1 - warpgroup : 0)",
    ),
    fault(
        "slopes: heads of a launch are counted from the first one of all",
        On::Slopes,
        "(head - slopes.first_head)",
        "head",
    ),
    fault(
        "slopes: a launch has the tiles of the first one",
        On::Slopes,
        "return params.slopes.first_tile;",
        "return 0;",
    ),
];
