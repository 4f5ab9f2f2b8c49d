#!/usr/bin/env python3
"""Times training steps and inference of NAT in PyTorch: the twin of `benches/nat_step`.

    python3 benches/peers/nat_step.py --model nat-mini --batch 64

Attention is eager products of gathered windows, or compiled flex_attention; the rest of a block is
eager, or compiled together with it. What fails, or has no time left, is a row that says why.
"""

import argparse
import gc
import math
import statistics
import time
from functools import partial

import torch
import torch.nn.functional as F

import nat_check
import record
import timing
from flags import names
from limit import Limit
from nat_attention import WAYS
from nat_model import MODELS, Block, Nat

TASKS = ["inference", "training", "training + AdamW"]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
COLUMNS = "{:<11} {:>5}  {:<6} {:<8} {:<16} {:>9}  {:>10}  {:>8}  {:>12}  {:>10}"
# Steps before the first that is timed, besides the very first.
WARM_UP = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def counts(text):
        return [count(word) for word in text.split(",")]

    def count(text):
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"has {text}, must be a number from 1 on")
        return int(text)

    parser.add_argument("--model", type=names(MODELS), default=["nat-mini"], help="by commas")
    parser.add_argument("--batch", type=counts, default=[64, 256], help="images of a step, by commas")
    parser.add_argument("--ways", type=names(WAYS), default=list(WAYS), help="of attention, by commas")
    parser.add_argument("--compile", choices=["no", "yes", "both"], default="both", help="whole blocks")
    parser.add_argument("--tasks", type=names(TASKS), default=TASKS, help="by commas")
    parser.add_argument("--steps", type=count, default=10, help="timed steps; the median counts")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of weights and activations")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit-s", type=float, default=140.0, help="of the whole run")
    return parser.parse_args()


class Setting:
    """A model on the device, and a batch for it."""

    def __init__(self, config, attend, compiled, batch, args):
        self.device, self.dtype, self.config = args.device, DTYPES[args.dtype], config
        # Dynamic shapes would be slower, and what others compiled is dropped.
        torch._dynamo.reset()
        run = torch.compile(Block.forward, dynamic=False, fullgraph=True) if compiled else Block.forward
        self.alone = None if compiled else attend
        torch.manual_seed(1)
        self.model = self.prepare(Nat(config, attend, self.device, run))
        torch.manual_seed(2)
        self.images = self.prepare(torch.randn(batch, 3, config.side, config.side))
        self.labels = torch.randint(config.classes, (batch,)).to(self.device)

    def prepare(self, tensors):
        """On the device, channels last, which its convolutions like best."""
        return tensors.to(self.device, self.dtype, memory_format=torch.channels_last)

    def step(self, task):
        """A function that does the task once."""
        if task == "inference":
            self.model.eval()
            return self.infer
        self.model.train()
        optimizer = None
        if task != "training":
            fused = self.device == "cuda"
            optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        return lambda: self.train(optimizer)

    def infer(self):
        with torch.no_grad():
            return self.model(self.images)

    def train(self, optimizer):
        loss = F.cross_entropy(self.model(self.images).float(), self.labels)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach()


def first_step(setting, task):
    """Seconds of the very first step, which compiles."""
    start = time.perf_counter()
    result = setting.step(task)().float().sum().item()
    if not math.isfinite(result):
        raise ValueError(f"wrong: the result is {result}")
    return time.perf_counter() - start


def measure(setting, task, steps):
    """Milliseconds of the median step, and GiB: at most in tensors, and held by the allocator."""
    is_cuda = setting.device == "cuda"
    step = setting.step(task)
    for _ in range(WARM_UP):
        step()
    if is_cuda:
        torch.cuda.synchronize()
        # What the steps before have left over is not theirs.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times = [timing.seconds(step, 1, setting.device) for _ in range(steps)]
    most = [torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved]
    memory = [read() / 2**30 if is_cuda else math.nan for read in most]
    return statistics.median(times) * 1e3, memory


def run_way(label, prepare, args, limit):
    """Rows of all tasks of one way; `prepare` makes its `Setting`."""

    def failed(task, error):
        text = COLUMNS.format(*label, task, "", "", "", "", "").rstrip()
        print(text, "", record.one_line(error), flush=True)

    # Whatever a way throws is a result.
    try:
        with limit.within():
            setting = prepare()
    except Exception as error:
        failed("", error)
        return
    firsts = {}
    for task in args.tasks:
        try:
            with limit.within():
                firsts[task] = first_step(setting, task)
        except Exception as error:
            setting.model.zero_grad(set_to_none=True)
            failed(task, error)
    try:
        with limit.within():
            nat_check.check(setting.model, setting.images, setting.alone, args.dtype)
    except Exception as error:
        failed("check", error)
        return
    for task, first in firsts.items():
        try:
            with limit.within():
                ms, memory = measure(setting, task, args.steps)
        except Exception as error:
            setting.model.zero_grad(set_to_none=True)
            failed(task, error)
            continue
        gib = [f"{size:.2f}" for size in memory]
        row = (f"{label[1] / ms * 1e3:.0f}", f"{ms:.2f}", *gib, f"{first:.1f}")
        print(COLUMNS.format(*label, task, *row), flush=True)


def main():
    args = arguments()
    limit = Limit(args.limit_s)
    torch.backends.cudnn.benchmark = True
    # Each stage, dilation and task is a program.
    torch._dynamo.config.cache_size_limit = 64
    machine = record.machine(args.device, "")
    print(f"{machine['device']}, {machine['driver']}, torch {torch.__version__}, {args.dtype}")
    label = ("model", "batch", "way", "blocks", "task")
    print(COLUMNS.format(*label, "images/s", "ms a step", "peak GiB", "reserved GiB", "first s"))
    compiles = {"no": [False], "yes": [True], "both": [False, True]}[args.compile]
    for name in args.model:
        for batch in args.batch:
            for compiled in compiles:
                for way in args.ways:
                    label = (name, batch, way, "compiled" if compiled else "eager")
                    prepare = partial(Setting, MODELS[name], WAYS[way], compiled, batch, args)
                    run_way(label, prepare, args, limit)
                    # The tensors of a way may fill the device.
                    gc.collect()
                    if args.device == "cuda":
                        torch.cuda.empty_cache()
    print(f"{max(limit.left(), 0.0):.0f} s left")


if __name__ == "__main__":
    main()
