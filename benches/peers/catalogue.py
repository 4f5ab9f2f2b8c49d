"""The problems, as the Rust bench writes them, and which keys a query sees."""

import json
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Axis:
    """One spatial axis."""

    length: int
    kernel_size: int
    stride: int = 1
    dilation: int = 1
    is_causal: bool = False

    def bounds(self, query):
        """First key that a query sees, and the end of them, counted among the keys of its dilation."""
        group, position = query % self.dilation, query // self.dilation
        members = -(-(self.length - group) // self.dilation)
        first = position // self.stride * self.stride
        if self.is_causal:
            leader = min(first + self.stride - 1, members - 1)
            return max(leader - self.kernel_size + 1, 0), position + 1
        leader = min(first + self.stride // 2, members - 1)
        start = min(max(leader - self.kernel_size // 2, 0), members - self.kernel_size)
        return start, start + self.kernel_size

    def sees(self, query, key):
        """Whether a query sees a key, from the definition."""
        start, end = self.bounds(query)
        return key % self.dilation == query % self.dilation and start <= key // self.dilation < end

    def window(self, query):
        """The keys that a query sees."""
        return [key for key in range(self.length) if self.sees(query, key)]


@dataclass(frozen=True)
class Problem:
    """A row of the catalogue. Tensors are `[batch, *space, heads, head_dim]`."""

    name: str
    batch: int
    heads: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    scale: float
    is_dense: bool
    axes: tuple
    flops: dict
    bytes: dict

    @property
    def space(self):
        return tuple(axis.length for axis in self.axes)

    @property
    def tokens(self):
        count = 1
        for length in self.space:
            count *= length
        return count

    @property
    def is_causal(self):
        """Whether this is dense attention to earlier tokens."""
        return self.is_dense and self.axes[0].is_causal

    def coordinates(self, token):
        """Row-major coordinates of a token."""
        place = []
        for length in reversed(self.space):
            place.append(token % length)
            token //= length
        return tuple(reversed(place))

    def token(self, place):
        """Row-major index of coordinates."""
        index = 0
        for length, coordinate in zip(self.space, place):
            index = index * length + coordinate
        return index

    def keys(self, query):
        """The tokens that a query sees."""
        place = self.coordinates(query)
        windows = [axis.window(coordinate) for axis, coordinate in zip(self.axes, place)]
        return [self.token(keys) for keys in product(*windows)]


def read(path, which):
    """All problems of the set `which` ("all" or "small") in a file."""
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)
    return [problem(entry) for entry in entries if entry["set"] == which]


def problem(entry):
    """A problem from its JSON object."""
    parameters = ("length", "kernel_size", "stride", "dilation", "is_causal")
    axes = tuple(Axis(*values) for values in zip(*(entry[name] for name in parameters)))
    same = ("name", "batch", "heads", "heads_kv", "head_dim", "head_dim_v", "scale", "is_dense")
    return Problem(
        **{name: entry[name] for name in same},
        axes=axes,
        flops={name: entry[name]["flops"] for name in ("forward", "backward")},
        bytes={
            name: {int(size): count for size, count in entry[name]["bytes"].items()}
            for name in ("forward", "backward")
        },
    )
