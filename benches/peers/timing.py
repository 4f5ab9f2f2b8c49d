"""Times of single calls, taken as `burn_natten::profile` takes them.

The only difference is the clock: CUDA events around a batch here, the host's clock there.
"""

import math
import statistics
import time
from dataclasses import dataclass

import torch

WARMUP = 3
MIN_SAMPLE = 0.010
IDLE = 0.5
SUSTAIN = 1.0
# No sample begins later than this many seconds after the first.
LIMIT = 20.0


@dataclass
class Timing:
    """Seconds a call, and the number of timed calls."""

    samples: list
    calls: int

    def quartiles(self):
        """First quartile, median, third quartile."""
        if len(self.samples) == 1:
            return self.samples * 3
        return statistics.quantiles(self.samples, n=4, method="inclusive")


def seconds(call, calls, device):
    """Duration of a batch of calls."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3


def measure(call, mode, samples, device, call_limit):
    """Times `call` in a mode, "burst" or "sustained".

    Raises `ValueError` if a call takes longer than `call_limit` seconds.
    """
    seconds(call, 1, device)
    single = seconds(call, 1, device)
    if single > call_limit:
        raise ValueError(f"skipped: {single:.1f} s a call, the limit is {call_limit:g} s")
    start = time.monotonic()
    for _ in range(2, WARMUP):
        if time.monotonic() - start < LIMIT:
            seconds(call, 1, device)
    calls = batch_size(lambda calls: seconds(call, calls, device))
    run = burst if mode == "burst" else sustained
    batches = run(call, calls, samples, device)
    return Timing([batch / calls for batch in batches], calls * len(batches))


def batch_size(batch):
    """Calls that together last at least `MIN_SAMPLE`."""
    calls = 1
    while True:
        elapsed = max(batch(calls), 1e-9)
        if elapsed >= MIN_SAMPLE or calls >= 1_000_000:
            return calls
        grown = math.ceil(calls * 1.1 * MIN_SAMPLE / elapsed)
        calls = min(max(grown, calls + 1), 1_000_000)


def burst(call, calls, count, device):
    start, batches = time.monotonic(), []
    while not batches or (len(batches) < count and time.monotonic() - start < LIMIT):
        time.sleep(IDLE)
        seconds(call, 1, device)
        batches.append(seconds(call, calls, device))
    return batches


def sustained(call, calls, count, device):
    start, batches = time.monotonic(), []

    def elapsed():
        return time.monotonic() - start

    while elapsed() < SUSTAIN / 2:
        seconds(call, calls, device)
    while (
        not batches
        or elapsed() < SUSTAIN
        or (len(batches) < count and elapsed() < LIMIT)
    ):
        batches.append(seconds(call, calls, device))
    return batches
