"""Batches of different sizes: the files that `natten-profiler --ragged` reads, and what they come to."""

import random
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product
from math import exp, log, prod

import numpy as np

from catalogue import Axis

SEED = 42


def images():
    """64 images of 16 x 16 to 96 x 96 tokens."""
    generator = random.Random(SEED)
    sides = [(generator.randint(16, 96), generator.randint(16, 96)) for _ in range(62)]
    return [(16, 16), (96, 96), *sides]


def videos():
    """8 videos of up to 16 frames: Cosmos' own shape, and those of its other aspect ratios."""
    generator = random.Random(SEED)
    planes = [(44, 80), (44, 60), (60, 60), (60, 44), (80, 44)]
    return [(16, 44, 80)] + [(generator.randint(8, 16), *generator.choice(planes)) for _ in range(7)]


def texts():
    """256 sequences of 128 to 8192 tokens, their logarithms evenly spread."""
    generator = random.Random(SEED)
    low, high = log(128), log(8192)
    lengths = [round(exp(generator.uniform(low, high))) for _ in range(254)]
    return [(length,) for length in (128, 8192, *lengths)]


SIZES = {"images": images, "videos": videos, "texts": texts}


def write(path, sizes):
    """One a line, its numbers apart by blanks."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(" ".join(map(str, size)) + "\n" for size in sizes)


def read(path):
    """The sizes in a file, numbers apart by blanks, commas or an x."""
    sizes = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = [word for word in re.split(r"[\s,x]+", line) if word]
            if not words:
                continue
            size = tuple(int(word) if word.isdecimal() else 0 for word in words)
            count = len(sizes[0]) if sizes else len(size)
            if not 1 <= len(size) <= 3 or len(size) != count or min(size) < 1:
                raise ValueError(
                    f"{path}: line {number} is '{line.strip()}', must be {min(count, 3)} numbers from 1 on"
                )
            sizes.append(size)
    if not sizes:
        raise ValueError(f"{path}: has no sizes, must have at least 1")
    return sizes


@lru_cache(maxsize=4096)
def bounds(axis):
    """First key, and the end of them, of each query: `[2, length]`."""
    return np.array([axis.bounds(query) for query in range(axis.length)]).T


@dataclass(frozen=True)
class Packed:
    """A batch, the tokens of all its sequences one behind the other.

    Windows are no larger than their space; without a `kernel_size` they are all of it.
    """

    sizes: tuple
    heads: int
    head_dim: int
    kernel_size: tuple = ()
    stride: tuple = ()
    is_causal: bool = False

    @cached_property
    def spaces(self):
        """The axes of each sequence."""
        return [self.axes(size, self.kernel_size) for size in self.sizes]

    def axes(self, size, kernel_size):
        kernel_size = [min(pair) for pair in zip(size, kernel_size or size)]
        stride = [min(pair) for pair in zip(kernel_size, self.stride or [1] * len(size))]
        axes = zip(size, kernel_size, stride)
        return tuple(Axis(length, keys, group, 1, self.is_causal) for length, keys, group in axes)

    @cached_property
    def lengths(self):
        """Tokens of each sequence."""
        return [prod(size) for size in self.sizes]

    @cached_property
    def starts(self):
        """First token of each sequence, and the end of the last."""
        return [0, *accumulate(self.lengths)]

    @property
    def tokens(self):
        return self.starts[-1]

    @property
    def scale(self):
        return self.head_dim**-0.5

    def pairs(self):
        """Pairs of a query and a key that it sees, in one head."""
        def of_axis(axis):
            first, end = bounds(axis)
            return int((end - first).sum())

        return sum(prod(map(of_axis, axes)) for axes in self.spaces)

    def flops(self):
        """Useful operations of the forward pass, and of both, as the library counts them."""
        forward = 2 * self.heads * self.pairs() * 2 * self.head_dim
        return {"forward": forward, "both": forward + forward // 2 * 5}

    def keys(self, sequence, token, is_dense=False):
        """The tokens of a sequence that one of them sees, counted in it; those of dense attention."""
        size = self.sizes[sequence]
        axes = self.axes(size, ()) if is_dense else self.spaces[sequence]
        place = np.unravel_index(token, size)
        windows = [range(*bounds(axis)[:, index]) for axis, index in zip(axes, place)]
        return np.ravel_multi_index(tuple(zip(*product(*windows))), size)

    def tables(self):
        """For each axis first key, end and place of each token, `[3, tokens]`.

        Places along the first axis go on from sequence to sequence, which keeps them apart.
        """
        tables = []
        for number in range(len(self.sizes[0])):
            offset, parts = 0, []
            for size, axes in zip(self.sizes, self.spaces):
                place = np.indices(size)[number].ravel()
                parts.append(np.stack([*bounds(axes[number])[:, place], place]) + offset)
                offset += size[0] if number == 0 else 0
            tables.append(np.concatenate(parts, 1))
        return tables
