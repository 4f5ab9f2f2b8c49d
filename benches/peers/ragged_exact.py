"""Sampled rows of a packed batch in float64, to check results before they are timed."""

import random

import numpy as np

import exact


def errors(packed, implementation, prepared, count=4):
    """Greatest difference over the greatest value, of the output and of the gradient of the query."""
    results = dict(zip(("forward", "backward"), prepared.both()))
    worst = {which: [0.0, 0.0] for which in results}
    generator = random.Random(7)
    last = len(packed.sizes) - 1
    for sequence in sorted({0, last, *(generator.randrange(last + 1) for _ in range(count))}):
        start, end = packed.starts[sequence : sequence + 2]
        head = generator.randrange(packed.heads)

        def rows(tensor):
            return exact.array(prepared.rows(tensor, head, start, end))

        query, key, value, grad_out = map(
            rows, (prepared.query, prepared.key, prepared.value, prepared.grad_out)
        )
        got = {which: rows(result) for which, result in results.items()}
        tokens = end - start
        for token in {0, tokens - 1, tokens // 2, generator.randrange(tokens)}:
            keys = packed.keys(sequence, token, implementation.is_dense)
            expected = exact.attend(query[token], key[keys], value[keys], grad_out[token], packed.scale)
            for which, result in got.items():
                exact.compare(worst[which], result[token], expected[which])
    return {which: ratio(*pair) for which, pair in worst.items()}


def ratio(difference, largest):
    """Infinite where a result is not a number, which is how `exact.compare` counts it."""
    return difference / largest if np.isfinite(difference) else np.inf
