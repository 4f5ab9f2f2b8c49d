"""The mask of a packed batch for flex_attention."""

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from mask import BLOCK


def mask_mod(packed, device):
    """`(batch, head, query, key) -> visible`, for flex_attention or for whole index tensors."""
    axes = [
        [torch.tensor(row, dtype=torch.int32, device=device) for row in table]
        for table in packed.tables()
    ]

    def visible(batch, head, query, key):
        del batch, head
        result = query >= 0
        for first, end, place in axes:
            keys = place[key]
            result = result & (keys >= first[query]) & (keys < end[query])
        return result

    return visible


def block_mask(packed, device):
    """The block mask, made from the pairs within sequences alone: those of all are too many."""
    visible = mask_mod(packed, device)
    blocks, tokens = -(-packed.tokens // BLOCK), packed.tokens
    some = torch.zeros(blocks, blocks, dtype=torch.bool, device=device)
    every = torch.zeros_like(some)
    starts = np.array(packed.starts)
    for row in range(blocks):
        first, last = row * BLOCK, min((row + 1) * BLOCK, tokens) - 1
        begin = starts[np.searchsorted(starts, first, "right") - 1] // BLOCK
        end = -(-starts[np.searchsorted(starts, last, "right")] // BLOCK)
        query = torch.arange(first, last + 1, device=device)[:, None]
        key = torch.arange(begin * BLOCK, end * BLOCK, device=device)[None, :]
        seen = visible(0, 0, query, key.clamp(max=tokens - 1)) & (key < tokens)
        seen = seen.unflatten(1, (-1, BLOCK))
        some[row, begin:end] = seen.any(2).any(0)
        # What is behind the last token counts as visible in no block.
        every[row, begin:end] = seen.all(2).all(0) & (last + 1 - first == BLOCK)
    return BlockMask.from_kv_blocks(
        *ordered(some & ~every), *ordered(every), BLOCK, visible, seq_lengths=(tokens, tokens)
    )


def ordered(blocks):
    """Number of blocks of each row, and their columns before those of the others."""
    columns = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    counts = blocks.sum(1)
    return tuple(tensor.to(torch.int32)[None, None].contiguous() for tensor in (counts, columns))
