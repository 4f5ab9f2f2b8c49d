//! Faults of decoding.

use super::{Fault, On, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "decode: compressed blocks are multiplied before they have arrived",
        On::Decode,
        "    wait_for_copies();\n    __syncwarp();\n    float scores",
        "    __syncwarp();\n    float scores",
    ),
    // Lanes of a warp that do not meet between copies and products are not found: matrices are loaded, and tokens named, by exchanges, which order
    // memory as well on the machine.
    fault(
        "decode: queries are read before they are there",
        On::Decode,
        "params.of_query.head);\n  __syncthreads();\n\n  float* const to",
        "params.of_query.head);\n  __syncwarp();\n\n  float* const to",
    ),
    fault(
        "decode: tokens are multiplied before they have arrived",
        On::Decode,
        "  wait_for_copies();\n  __syncthreads();\n  Sums sums;",
        "  __syncthreads();\n  Sums sums;",
    ),
    fault(
        "decode: tokens' queries are read before they are there",
        On::Decode,
        "  wait_for_copies();\n  __syncthreads();\n  Sums sums;",
        "  wait_for_copies();\n  __syncwarp();\n  Sums sums;",
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
        "  __syncthreads();\n\n  // Nobody waits for the branch",
        "\n  // Nobody waits for the branch",
    ),
    fault(
        "decode: masses are added up before they are there",
        On::Decode,
        "  __syncthreads();\n  const int taps",
        "  const int taps",
    ),
    fault(
        "decode: scores are ranked before they are there",
        On::Decode,
        "  __syncthreads();\n  float2* const best",
        "  float2* const best",
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
        "  __syncthreads();\n  if (threadIdx.x < params.free) {",
        "  if (threadIdx.x < params.free) {",
    ),
    fault(
        "decode: rows of both branches are read before they are there",
        On::Decode,
        "  __syncthreads();\n  const u16* const gates",
        "  const u16* const gates",
    ),
    fault(
        "decode: a CTA that comes to a counter does not wait for its other threads",
        On::Decode,
        "  __syncthreads();\n  if (threadIdx.x == 0) before = atomicAdd(counter, 1);\n  __syncthreads();",
        "  if (threadIdx.x == 0) before = atomicAdd(counter, 1);",
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
