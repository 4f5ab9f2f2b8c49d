#!/usr/bin/env python3
"""Times attention of batches of different sizes in PyTorch, for `natten-profiler --ragged`.

    python3 benches/peers/ragged.py --write-sizes images images.txt
    python3 benches/peers/ragged.py --images images.txt

Results are checked against float64 on sampled rows before they are timed. What fails, or has no
time left, is a row that says why. The operations that TFLOP/s count are those that windows need.
"""

import argparse
import gc
import statistics
import time

import torch

import exact
import ragged_exact
import ragged_sizes
import record
import timing
from flags import names
from limit import Limit
from ragged_attention import IMPLEMENTATIONS
from ragged_sizes import Packed

# Sizes of, and parameters: heads and head_dim as `flex-64`, `cosmos` and `dense-16k-causal` of the
# catalogue have them.
PROBLEMS = {
    "images-7": ("images", {"heads": 8, "head_dim": 64, "kernel_size": (7, 7)}),
    "images-13": ("images", {"heads": 8, "head_dim": 64, "kernel_size": (13, 13)}),
    "texts": ("texts", {"heads": 16, "head_dim": 128, "is_causal": True}),
    "videos": (
        "videos",
        {"heads": 32, "head_dim": 128, "kernel_size": (16, 32, 48), "stride": (1, 4, 16)},
    ),
}
PASSES = ["forward", "both"]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
COLUMNS = "{:<10} {:<34} {:<8} {:>10}  {:>8}  {:>8}  {:>8}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    kinds = ", ".join(ragged_sizes.SIZES)
    parser.add_argument(
        "--write-sizes", nargs=2, metavar=("KIND", "FILE"), help=f"write sizes, of {kinds}, and do no more"
    )
    for kind in ragged_sizes.SIZES:
        parser.add_argument(f"--{kind}", metavar="FILE", help="sizes [default: those of --write-sizes]")
    parser.add_argument("--problems", type=names(PROBLEMS), default=list(PROBLEMS), help="by commas")
    known = list(IMPLEMENTATIONS)
    parser.add_argument("--implementations", type=names(known), default=known, help="by commas")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--span-s", type=float, default=0.7, help="of the samples of a time")
    parser.add_argument("--row-limit-s", type=float, default=40.0, help="of a problem with an implementation")
    parser.add_argument("--limit-s", type=float, default=140.0, help="of the whole run")
    args = parser.parse_args()
    if args.write_sizes and args.write_sizes[0] not in ragged_sizes.SIZES:
        parser.error(f"--write-sizes: has {args.write_sizes[0]}, must be among {kinds}")
    return args


def samples(call, span, device):
    """Seconds a call, after calls that are not timed, until `span` seconds are over."""
    timing.seconds(call, 1, device)
    calls = timing.batch_size(lambda calls: timing.seconds(call, calls, device))
    found, start = [], time.monotonic()
    while not found or time.monotonic() - start < span:
        found.append(timing.seconds(call, calls, device) / calls)
    return found


def run_row(label, packed, implementation, args):
    """Both passes of a problem with one implementation."""
    start = time.perf_counter()
    prepared = implementation.prepare(packed, DTYPES[args.dtype], args.device)
    bound = exact.BOUNDS[args.dtype]
    for which, found in ragged_exact.errors(packed, implementation, prepared).items():
        if found > bound:
            raise ValueError(f"wrong: the error of the {which} pass is {found:.1e}, the bound is {bound:.0e}")
    ready = time.perf_counter() - start
    for name in PASSES:
        times = samples(getattr(prepared, name), args.span_s, args.device)
        median = statistics.median(times)
        tflops = packed.flops()[name] / median * 1e-12
        row = (f"{median * 1e3:.3f}", f"{tflops:.1f}", len(times), f"{ready:.1f}")
        print(COLUMNS.format(*label, name, *row), flush=True)


def run_problem(name, packed, args, limit):
    flops = packed.flops()["forward"]
    print(f"{name}: {len(packed.sizes)} of {len(set(packed.sizes))} shapes, {packed.tokens} tokens, "
          f"heads {packed.heads}, head_dim {packed.head_dim}, {flops:.4g} FLOP forward")
    for key in args.implementations:
        title, implementation = IMPLEMENTATIONS[key]
        if implementation.is_dense and packed.kernel_size:
            title += " dense"
        # Whatever a peer throws is a result.
        try:
            with limit.within(args.row_limit_s):
                run_row((name, title), packed, implementation, args)
        except Exception as error:
            text = COLUMNS.format(name, title, "", "", "", "", "").rstrip()
            print(text, "", record.one_line(error), flush=True)
        # The tensors of a row may fill the device.
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()


def main():
    args = arguments()
    if args.write_sizes:
        kind, path = args.write_sizes
        ragged_sizes.write(path, ragged_sizes.SIZES[kind]())
        return
    limit = Limit(args.limit_s)
    machine = record.machine(args.device, "")
    print(f"{machine['device']}, {machine['driver']}, torch {torch.__version__}, {args.dtype}")
    print(COLUMNS.format("problem", "implementation", "passes", "ms", "TFLOP/s", "samples", "ready s"))
    for name in args.problems:
        kind, parameters = PROBLEMS[name]
        path = getattr(args, kind)
        sizes = ragged_sizes.read(path) if path else ragged_sizes.SIZES[kind]()
        run_problem(name, Packed(tuple(sizes), **parameters), args, limit)
    print(f"{max(limit.left(), 0.0):.0f} s left")


if __name__ == "__main__":
    main()
