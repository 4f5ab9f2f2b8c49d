//! Faults of Blackwell's backward kernels, which are one text.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    // Waits and phases.
    fault(
        "sm_100: rows are multiplied before they have arrived",
        On::Plane,
        "      barrier_wait(b.rows_full(), tiles & 1);\n",
        "",
    ),
    fault(
        "sm_100: columns are multiplied before they have arrived",
        On::Plane,
        "    barrier_wait(b.full(stage_of(step)), parity_of(step));\n    dot_products",
        "    dot_products",
    ),
    fault(
        "sm_100: statistics are read before they have arrived",
        On::Plane,
        "    if constexpr (INVERSE) barrier_wait(b.full(stage_of(step)), parity_of(step));\n",
        "",
    ),
    fault(
        "sm_100: scores are overwritten before they are read",
        On::Plane,
        "        barrier_wait(b.weights_full(), step & 1);\n",
        "",
    ),
    fault(
        "sm_100: slopes are multiplied before they are there",
        On::Plane,
        "        barrier_wait(b.slopes_full(), step & 1);\n",
        "",
    ),
    fault(
        "sm_100: backward, scores are read before they are there",
        On::Plane,
        "    barrier_wait(b.scores_full(), step & 1);\n",
        "",
    ),
    fault(
        "sm_100: dP is read before it is there",
        On::Plane,
        "    barrier_wait(b.product_full(), step & 1);\n",
        "",
    ),
    fault(
        "sm_100: the wait for dP has one parity",
        On::Line,
        "barrier_wait(b.product_full(), step & 1)",
        "barrier_wait(b.product_full(), 0)",
    ),
    fault(
        "sm_100: the wait for slopes has the wrong parity",
        On::Line,
        "barrier_wait(b.slopes_full(), step & 1)",
        "barrier_wait(b.slopes_full(), step & 1 ^ 1)",
    ),
    fault(
        "sm_100: parities change with every step",
        On::Line,
        "return step / STAGES & 1;",
        "return step & 1;",
    ),
    fault(
        "sm_100: the producer does not wait for free rows",
        On::Plane,
        "    barrier_wait(b.rows_empty(), tiles & 1 ^ 1);\n",
        "",
    ),
    fault(
        "sm_100: the producer does not wait for free columns",
        On::Plane,
        "        barrier_wait(b.empty(stage), parity_of(step) ^ 1);\n",
        "",
    ),
    fault(
        "sm_100: sums are written before they are there",
        On::Line,
        "      barrier_wait(b.sums_full(), tiles & 1);\n",
        "",
    ),
    fault(
        "sm_100: a tile is described where the one before still is, backward",
        On::Plane,
        "    barrier_wait(b.work_empty(slot), parity_of_slot(tiles) ^ 1);\n    decode_tile",
        "    decode_tile",
    ),
    // Arrivals and commits.
    fault(
        "sm_100: columns are freed while products read them",
        On::LongLine,
        "mma_commit(b.empty(stage_of(step)));",
        "barrier_arrive(b.empty(stage_of(step)));",
    ),
    // Rows that are freed by an arrival in place of a commit harm nobody: only scores and dP are made of them, whose slopes have come.
    fault(
        "sm_100: backward, scores are said to be there when their products are issued",
        On::Line,
        "mma_commit(b.scores_full());",
        "barrier_arrive(b.scores_full());",
    ),
    fault(
        "sm_100: the same of dP",
        On::Line,
        "mma_commit(b.product_full());",
        "barrier_arrive(b.product_full());",
    ),
    fault(
        "sm_100: backward, the same of sums",
        On::Line,
        "mma_commit(b.sums_full());",
        "barrier_arrive(b.sums_full());",
    ),
    fault(
        "sm_100: who reads statistics frees no stage",
        On::Line,
        "    if constexpr (INVERSE) arrive(b.empty(stage_of(step)));\n",
        "",
    ),
    fault(
        "sm_100: a stage is free without one of those who read statistics",
        On::Plane,
        "barrier_init(empty(i), INVERSE ? 1 + COMPUTING : 1);",
        "barrier_init(empty(i), INVERSE ? COMPUTING : 1);",
    ),
    // Lanes need not meet in front of these arrivals: what they have stored or read is behind instructions of the whole warp.
    fault(
        "sm_100: the bytes of the statistics are not expected",
        On::Plane,
        "barrier_expect(full, COLUMN_BYTES + STATISTICS_STAGE);",
        "barrier_expect(full, COLUMN_BYTES);",
    ),
    // Tensor memory: fences, waits, columns.
    fault(
        "sm_100: backward, no fence behind the wait for scores",
        On::Line,
        "    barrier_wait(b.scores_full(), step & 1);\n    tmem_fence_after();\n",
        "    barrier_wait(b.scores_full(), step & 1);\n",
    ),
    fault(
        "sm_100: no fence behind the wait for dP",
        On::Line,
        "    barrier_wait(b.product_full(), step & 1);\n    tmem_fence_after();\n",
        "    barrier_wait(b.product_full(), step & 1);\n",
    ),
    fault(
        "sm_100: no fence in front of the products of weights, backward",
        On::Line,
        "        barrier_wait(b.weights_full(), step & 1);\n        tmem_fence_after();\n",
        "        barrier_wait(b.weights_full(), step & 1);\n",
    ),
    fault(
        "sm_100: no fence in front of the products of slopes",
        On::Line,
        "        barrier_wait(b.slopes_full(), step & 1);\n        tmem_fence_after();\n",
        "        barrier_wait(b.slopes_full(), step & 1);\n",
    ),
    fault(
        "sm_100: no fence when scores are read",
        On::Line,
        "    if constexpr (!INVERSE) {\n      tmem_fence_before();\n",
        "    if constexpr (!INVERSE) {\n",
    ),
    fault(
        "sm_100: no fence when weights are written",
        On::Line,
        "      tmem_wait_stores();\n      tmem_fence_before();\n      arrive(b.weights_full());",
        "      tmem_wait_stores();\n      arrive(b.weights_full());",
    ),
    fault(
        "sm_100: no fence when slopes are written",
        On::Line,
        "    tmem_wait_stores();\n    tmem_fence_before();\n    arrive(b.slopes_full());",
        "    tmem_wait_stores();\n    arrive(b.slopes_full());",
    ),
    fault(
        "sm_100: slopes are handed over while they are stored",
        On::Line,
        "    tmem_wait_stores();\n    tmem_fence_before();\n    arrive(b.slopes_full());",
        "    tmem_fence_before();\n    arrive(b.slopes_full());",
    ),
    fault(
        "sm_100: no fence in front of reading sums, backward",
        On::Line,
        "      barrier_wait(b.sums_full(), tiles & 1);\n      tmem_fence_after();\n",
        "      barrier_wait(b.sums_full(), tiles & 1);\n",
    ),
    // The fence behind reading sums is followed by another one in front of the next arrival that lets products write there.
    fault(
        "sm_100: dP is used while it is loaded",
        On::Line,
        "      tmem_load(product, products + c);\n      tmem_wait_loads();\n",
        "      tmem_load(product, products + c);\n",
    ),
    fault(
        "sm_100: both steps have their dP in one place",
        On::Line,
        "INVERSE ? 128 : 128 + 128 * (step & 1)",
        "128",
    ),
    fault("sm_100: both sums overlap", On::LongLine, "FIRST_COLUMN = 384;", "FIRST_COLUMN = 320;"),
    fault(
        "sm_100: slopes are stored where dP has not been read",
        On::Line,
        "tmem_store16(products + c / 2, slopes);",
        "tmem_store16(products + 48 - c / 2, slopes);",
    ),
    fault(
        "sm_100: both halves of the slopes are taken to be adjacent",
        On::Line,
        "add_weighted<DIM, 64>",
        "add_weighted<DIM, 32>",
    ),
    fault(
        "sm_100: the second half of the scores begins too early",
        On::Line,
        "const u32 scores = mine + SCORES_COLUMN + 64 * half;",
        "const u32 scores = mine + SCORES_COLUMN + 32 * half;",
    ),
    fault(
        "sm_100: computing warps take more registers than the CTA was launched with",
        On::Line,
        "give_registers<504 - 2 * COMPUTE_REGISTERS>();",
        "give_registers<512 - 2 * COMPUTE_REGISTERS>();",
    ),
    // Operands, masks, statistics.
    fault(
        "sm_100: slopes are multiplied with vectors that lie the other way",
        On::LongLine,
        "summed_rows(column(step)), is_first",
        "vectors(column(step)), is_first",
    ),
    fault(
        "sm_100: dP is made of the first tensor of the rows",
        On::Line,
        "vectors(shared + FIRST_TILE)",
        "vectors(shared)",
    ),
    fault(
        "sm_100: sums go on from tile to tile",
        On::Plane,
        "for (bool is_first = true;",
        "for (bool is_first = step == 0;",
    ),
    fault(
        "sm_100: statistics of the second half are those of the first",
        On::Line,
        "(64 * half + j) * 16 + 8",
        "j * 16 + 8",
    ),
    fault("sm_100: weights are not masked", On::Line, "    seen.apply(x, 0, 0.f);\n", ""),
    fault(
        "sm_100: lines of a block along the middle axis are seen one too far",
        On::Plane,
        "(y >= start[1] && y < end[1])",
        "(y >= start[1] && y <= end[1])",
    ),
    fault(
        "sm_100: a whole warp loads",
        On::Line,
        "if (warp == LOADING && elect_one())",
        "if (warp == LOADING)",
    ),
];
