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
        "KEYS_STAGE + blocks * SLOPES_BLOCK",
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
        "    tile.column[2] = tile.column[2] / 64 * 64;\n",
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
        "tile.row[2] / 64 + own, tile.column[2] / 64 + low",
        "tile.row[2] / 64, tile.column[2] / 64 + low",
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
        "      slopes_at += SLOPES_BLOCK / 4;\n",
        "",
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
