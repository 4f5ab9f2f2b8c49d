"""Single rows in float64, to check results before they are timed."""

import random

import numpy as np

# Greatest error, over the greatest value of its tensor, that does not count as wrong.
BOUNDS = {"f32": 1e-4, "f16": 5e-3, "bf16": 3e-2}


def error(problem, implementation, prepared, which):
    """Greatest difference on sampled rows, over the greatest value there: of the output of a
    "forward" pass, or of the gradient of the query in a "backward" pass."""
    if which == "forward":
        result = prepared.forward()
    else:
        result = prepared.backward()()[0]
    worst = [0.0, 0.0]
    generator = random.Random(7)
    for batch, head in heads(problem, generator):
        head_kv = head // (problem.heads // problem.heads_kv)
        query, grad_out, got = (
            array(prepared.head(tensor, batch, head))
            for tensor in (prepared.query, prepared.grad_out, result)
        )
        key, value = (
            array(prepared.head(tensor, batch, head_kv))
            for tensor in (prepared.key, prepared.value)
        )
        for index in rows(problem, generator):
            keys = implementation.keys(problem, index)
            exact = attend(query[index], key[keys], value[keys], grad_out[index], problem.scale)
            compare(worst, got[index], exact[which])
    difference, largest = worst
    return difference / largest if difference else 0.0


def attend(query, key, value, grad_out, scale):
    """Output of one query, and its gradient, from the keys and values it sees."""
    parts = (query, key, value, grad_out)
    query, key, value, grad_out = (part.astype(np.float64) for part in parts)
    scores = scale * key @ query
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    out = weights @ value
    ds = scale * weights * (value @ grad_out - out @ grad_out)
    return {"forward": out, "backward": ds @ key}


def compare(worst, got, exact):
    difference = np.abs(got.astype(np.float64) - exact).max()
    worst[0] = max(worst[0], np.inf if np.isnan(difference) else difference)
    worst[1] = max(worst[1], np.abs(exact).max())


def array(tensor):
    return tensor.detach().float().cpu().numpy()


def heads(problem, generator):
    """The first and the last head, and one between."""
    count = problem.batch * problem.heads
    chosen = {0, count - 1, generator.randrange(count)}
    return [divmod(head, problem.heads) for head in sorted(chosen)]


def rows(problem, generator, count=12):
    """Corners of the space, its centre, and random tokens."""
    places = [
        tuple((length - 1) * (bits >> number & 1) for number, length in enumerate(problem.space))
        for bits in range(2 ** len(problem.space))
    ]
    places.append(tuple(length // 2 for length in problem.space))
    chosen = {problem.token(place) for place in places}
    while len(chosen) < min(count, problem.tokens):
        chosen.add(generator.randrange(problem.tokens))
    return sorted(chosen)
