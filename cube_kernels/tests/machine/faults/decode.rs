//! Faults of decoding.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "decode: the mean of a block is taken before its last token is there",
        On::Decode,
        "  if (params.block == 0) return;\n  __syncthreads();\n",
        "  if (params.block == 0) return;\n",
    ),
    // That another CTA reads the block, or its own before all of it is there, is not found: CTAs run one after another, and copies read late.
    fault(
        "decode: keys are multiplied before they have arrived",
        On::Decode,
        "    wait_for_groups<1>();\n    __syncwarp();\n    float scores",
        "    __syncwarp();\n    float scores",
    ),
    fault(
        "decode: values are multiplied before they have arrived",
        On::Decode,
        "    wait_for_groups<1>();\n    __syncwarp();\n    add(",
        "    __syncwarp();\n    add(",
    ),
    fault(
        "decode: keys of the step before are waited for",
        On::Decode,
        "    if (!is_last_step) bring<DIM>(keys, from.key, from.key_stride, token, lane);\n    commit_copies();",
        "    if (!is_last_step) bring<DIM>(keys, from.key, from.key_stride, token, lane);",
    ),
    // Lanes of a warp that do not meet between copies and products are not found: matrices are loaded, and tokens named, by exchanges, which order
    // memory as well on the machine.
    fault(
        "decode: queries are read before they are there",
        On::Decode,
        "  start(sums);\n  __syncthreads();\n",
        "  start(sums);\n  __syncwarp();\n",
    ),
    fault(
        "decode: sums lie over what others still read",
        On::Decode,
        "  // All have read what lay there.\n  __syncthreads();\n",
        "",
    ),
    fault(
        "decode: sums of warps are added up before they are there",
        On::Decode,
        "  __syncthreads();\n  for (int i = threadIdx.x; i < GROUP * DIM_V / 2; i += THREADS) {\n    const int row = i / (DIM_V / 2), column = i % (DIM_V / 2) * 2;\n    float most",
        "  for (int i = threadIdx.x; i < GROUP * DIM_V / 2; i += THREADS) {\n    const int row = i / (DIM_V / 2), column = i % (DIM_V / 2) * 2;\n    float most",
    ),
    fault(
        "decode: statistics are read before they are there",
        On::Decode,
        "  __syncthreads();\n  float* const masses",
        "  float* const masses",
    ),
    fault(
        "decode: masses are added up before they are there",
        On::Decode,
        "  __syncthreads();\n  // A list of the best of each warp's",
        "  // A list of the best of each warp's",
    ),
    fault(
        "decode: scores are ranked before they are there",
        On::Decode,
        "    __syncwarp();\n    const int rank = greater_ones",
        "    const int rank = greater_ones",
    ),
    fault(
        "decode: lists of warps are merged before they are there",
        On::Decode,
        "  __syncthreads();\n  const u64* const best = best_of(lists",
        "  const u64* const best = best_of(lists",
    ),
    fault(
        "decode: merged lists are merged before they are there",
        On::Decode,
        "    __syncthreads();\n    u64* const best = others;",
        "    u64* const best = others;",
    ),
    fault(
        "decode: what parts leave is ranked before it is there",
        On::Decode,
        "of_parts[i] = __ldcg(best + i);\n  __syncthreads();",
        "of_parts[i] = __ldcg(best + i);",
    ),
    fault(
        "decode: a list is ordered before all are chosen",
        On::Decode,
        "  __syncthreads();\n  if (threadIdx.x >= params.free) return;",
        "  if (threadIdx.x >= params.free) return;",
    ),
    fault(
        "decode: the selection does not wait for scores",
        On::Decode,
        "  wait_for_launch_ahead();\n  // Not before",
        "  // Not before",
    ),
    fault(
        "decode: the third launch begins before the first one has ended",
        On::Decode,
        "  wait_for_launch_ahead();\n  // Not before: the next one reads what the first one has written.\n  let_next_launch_begin();\n",
        "  let_next_launch_begin();\n  wait_for_launch_ahead();\n",
    ),
    fault(
        "decode: lists are not waited for",
        On::Decode,
        "  if (!is_window) wait_for_launch_ahead();\n",
        "",
    ),
    fault(
        "decode: the last CTA does not wait for the compressed branch",
        On::Decode,
        "  if (is_window) wait_for_launch_ahead();\n",
        "",
    ),
    // That other threads have written before the counter is counted up is not found where they happen to.
    fault(
        "decode: whether a CTA is the last one is read before it is there",
        On::Decode,
        "    __threadfence();\n  }\n  __syncthreads();\n  return",
        "    __threadfence();\n  }\n  return",
    ),
    fault(
        "decode: the first CTA takes itself for the last one",
        On::Decode,
        "  return before == ctas - 1;",
        "  return before == 0;",
    ),
    fault(
        "decode: counters are not set back",
        On::Decode,
        "[2 * pair + threadIdx.x] = 0;",
        "[2 * pair + threadIdx.x] += 0;",
    ),
];
