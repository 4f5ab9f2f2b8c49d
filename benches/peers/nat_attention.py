"""Attention of the twin of `benches/nat_step`: windows of a square map, with a bias by relative position."""

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mask
from catalogue import Axis, Problem


class Windows:
    """Which keys the tokens of a map see, for each way of attention. Tokens are row-major."""

    def __init__(self, side, kernel_size, dilation, device):
        self.side, self.kernel_size, self.dilation = side, kernel_size, dilation
        self.is_full = kernel_size == side
        axis = Axis(side, kernel_size, 1, dilation)
        place = torch.arange(side)[:, None]
        keys = torch.tensor([axis.window(query) for query in range(side)])
        # Of the keys of each token, and of their biases, one token behind the other.
        self.keys = grid(keys, side).to(device)
        self.offsets = grid((keys - place) // dilation + kernel_size - 1, self.extent).to(device)
        self.block_mask = None if self.is_full else self.blocks(axis, device)

    @property
    def extent(self):
        """Entries of a bias along each axis."""
        return 2 * self.kernel_size - 1

    def blocks(self, axis, device):
        problem = Problem("map", 1, 1, 1, 1, 1, 1.0, False, (axis, axis), {}, {})
        size, visible = problem.tokens, mask.mask_mod(problem)
        return create_block_mask(visible, None, None, size, size, device, mask.BLOCK)


def grid(line, extent):
    """Indices into a row-major square of `extent`, from `[side, kernel_size]` of one axis."""
    return (line[:, None, :, None] * extent + line[None, :, None, :]).flatten()


def split(qkv, heads):
    """`[batch, tokens, 3 * channels]` to query, key and value, `[batch, heads, tokens, head_dim]`."""
    return qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def gather(query, key, value, bias, windows):
    """Keys and values of each window beside each other, then products and a softmax.

    - query, key, value: `[batch, heads, tokens, head_dim]`
    - bias: `[heads, 2 * kernel_size - 1, 2 * kernel_size - 1]`, or `None`
    - output: as query
    """
    tokens = query.shape[2]

    def of_windows(tensor):
        return tensor.index_select(2, windows.keys).unflatten(2, (tokens, -1))

    query, keys = query * query.shape[-1] ** -0.5, of_windows(key)
    if torch.compiler.is_compiling():
        # One kernel with what is gathered, where a matrix product would have it in memory.
        scores = (query.unsqueeze(3) * keys).sum(-1)
    else:
        scores = (keys @ query.unsqueeze(-1)).squeeze(-1)
    if bias is not None:
        scores = scores + of_offsets(bias, windows).unflatten(1, (tokens, -1)).to(scores.dtype)
    weights, values = scores.softmax(-1), of_windows(value)
    if torch.compiler.is_compiling():
        return (weights.unsqueeze(4) * values).sum(3)
    return (weights.unsqueeze(3) @ values).squeeze(3)


def of_offsets(bias, windows):
    """The bias of each key of each token, `[heads, tokens * keys]`. Its gradient is a sum in f32."""
    return bias.float().flatten(1).index_select(1, windows.offsets)


def flex_with(operator):
    """The same as `gather` by `operator`, which is `flex_attention`, compiled or not."""

    def attend(query, key, value, bias, windows):
        if windows.is_full:
            return dense(query, key, value, bias, windows)
        side, dilation = windows.side, windows.dilation
        far, last = windows.kernel_size - 1, windows.extent - 1
        score_mod = None
        if bias is not None:
            table = bias.float()

            def score_mod(score, batch, head, query, key):
                del batch
                # Scores of masked pairs are computed, too.
                row = ((key // side - query // side) // dilation + far).clamp(0, last)
                column = ((key % side - query % side) // dilation + far).clamp(0, last)
                return score + table[head, row, column]

        call = flex_attention if torch.compiler.is_compiling() else operator
        return call(query, key, value, score_mod=score_mod, block_mask=windows.block_mask)

    return attend


def dense(query, key, value, bias, windows):
    """Where a window is the whole map, the bias is a mask of all pairs."""
    if bias is not None:
        bias = of_offsets(bias, windows).unflatten(1, (query.shape[2], -1)).to(query.dtype)
        bias = bias.expand(query.shape[0], -1, -1, -1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


WAYS = {
    "gather": gather,
    "flex": flex_with(torch.compile(flex_attention, dynamic=False, fullgraph=True)),
}
