"""The neighborhood mask for flex_attention."""

import torch
from torch.nn.attention.flex_attention import create_block_mask

# Side of a block, in tokens.
BLOCK = 128


def mask_mod(problem):
    """`(batch, head, query, key) -> visible`, for flex_attention or for whole index tensors."""
    masked = [
        (number, axis)
        for number, axis in enumerate(problem.axes)
        if axis.is_causal or axis.kernel_size < axis.length
    ]

    def visible(batch, head, query, key):
        del batch, head
        queries, keys = coordinates(problem, query), coordinates(problem, key)
        result = query >= 0
        for number, axis in masked:
            result = result & sees(axis, queries[number], keys[number])
        return result

    return visible


def coordinates(problem, token):
    """Coordinates of a token, slowest axis first."""
    place = []
    for length in reversed(problem.space[1:]):
        place.append(token % length)
        token = token // length
    place.append(token)
    return place[::-1]


def sees(axis, query, key):
    """`Axis.sees` on tensors, with what the constants make superfluous left out."""
    group, last = None, axis.length - 1
    if axis.dilation > 1:
        group = query % axis.dilation == key % axis.dilation
        last = (axis.length - query % axis.dilation + axis.dilation - 1) // axis.dilation - 1
        query, key = query // axis.dilation, key // axis.dilation
    leader = query
    if axis.stride > 1:
        offset = axis.stride - 1 if axis.is_causal else axis.stride // 2
        leader = at_most(query // axis.stride * axis.stride + offset, last)
    if axis.is_causal:
        inside = (key > leader - axis.kernel_size) & (key <= query)
    else:
        start = torch.clamp(leader - axis.kernel_size // 2, min=0)
        start = at_most(start, last + 1 - axis.kernel_size)
        inside = (key >= start) & (key < start + axis.kernel_size)
    return inside if group is None else inside & group


def at_most(tensor, bound):
    """The smaller of a tensor and a number or tensor."""
    if isinstance(bound, int):
        return torch.clamp(tensor, max=bound)
    return torch.minimum(tensor, bound)


def block_mask(problem, device, limit):
    """The block mask of a problem; `None` if everything is visible.

    Raises `ValueError` if more than `limit` pairs of tokens would have to be evaluated for it.
    """
    if problem.is_dense and not problem.is_causal:
        return None
    tokens = problem.tokens
    if tokens**2 > limit:
        raise ValueError(
            f"skipped: the block mask of {tokens} tokens evaluates {tokens**2:.1e} pairs, "
            f"the limit is {limit:.1e}"
        )
    # Compiled, it is not materialised pair by pair.
    return torch.compile(create_block_mask, dynamic=False)(
        mask_mod(problem),
        B=None,
        H=None,
        Q_LEN=tokens,
        KV_LEN=tokens,
        device=device,
        BLOCK_SIZE=BLOCK,
    )
