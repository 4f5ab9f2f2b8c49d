#!/usr/bin/env python3
"""Times the catalogue with PyTorch's attention operators, and with NATTEN where it is installed.

    cargo bench --bench catalogue -- --write-json catalogue.json
    python3 benches/peers/run.py --catalogue catalogue.json --out peers.csv

Every result is checked against float64 on sampled rows before it is timed. A row that fails, or
that takes too long, is a row of the results that says why.
"""

import argparse
import gc
import importlib.util
import sys

import torch

import catalogue
import exact
import record
import timing
from attention import IMPLEMENTATIONS
from flags import names

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PASSES = ["forward", "backward"]
MODES = ["burst", "sustained"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    known = list(IMPLEMENTATIONS)
    parser.add_argument("--catalogue", required=True, help="what the Rust bench writes")
    parser.add_argument("--out", required=True, help="CSV to write")
    parser.add_argument("--set", choices=["all", "small"], default="all")
    parser.add_argument("--only", default="", help="names of problems, by commas")
    parser.add_argument("--implementations", type=names(known), default=known)
    parser.add_argument("--passes", type=names(PASSES), default=PASSES)
    parser.add_argument("--modes", type=names(MODES), default=MODES)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--limit-seconds", type=float, default=20.0, help="longest call to time")
    parser.add_argument(
        "--mask-limit",
        type=float,
        default=2e11,
        help="most pairs of tokens that a block mask of flex_attention may be made from",
    )
    return parser.parse_args()


def chosen(problems, only):
    """The problems named in `only`, with or without "-small"; all if it is empty."""
    wanted = set(filter(None, only.split(",")))
    found = [
        problem
        for problem in problems
        if not wanted or {problem.name, problem.name.removesuffix("-small")} & wanted
    ]
    names = {problem.name for problem in found}
    missing = [name for name in wanted if not {name, f"{name}-small"} & names]
    if missing:
        sys.exit(f"--only: has {missing[0]}, must be among {[p.name for p in problems]}")
    return found


def run_row(problem, implementation, args, writer):
    """All passes and modes of one problem with one implementation."""
    row = {
        "problem": problem.name,
        "implementation": implementation.label(problem),
        "dtype": args.dtype,
    }
    dtype = DTYPES[args.dtype]

    def failed(name, error):
        for mode in args.modes:
            writer.write(**row, **{"pass": name}, mode=mode, note=record.one_line(error))

    # Whatever a peer throws is a result.
    try:
        prepared = implementation.prepare(problem, dtype, args.device, args)
    except Exception as error:
        for name in args.passes:
            failed(name, error)
        return
    for name in args.passes:
        try:
            found = exact.error(problem, implementation, prepared, name)
            if found > exact.BOUNDS[args.dtype]:
                raise ValueError(f"wrong: the error is {found:.1e}")
            call = prepared.forward if name == "forward" else prepared.backward()
        except Exception as error:
            failed(name, error)
            continue
        for mode in args.modes:
            same = {**row, "pass": name, "mode": mode}
            try:
                result = timing.measure(
                    call, mode, args.samples, args.device, args.limit_seconds
                )
            except Exception as error:
                writer.write(**same, note=record.one_line(error))
                continue
            q1, median, q3 = result.quartiles()
            writer.write(
                **same,
                ms=median * 1e3,
                q1_ms=q1 * 1e3,
                q3_ms=q3 * 1e3,
                calls=result.calls,
                tflops=problem.flops[name] / median * 1e-12,
                gbps=problem.bytes[name][dtype.itemsize] / median * 1e-9,
                error=found,
            )
        del call


def main():
    args = arguments()
    problems = chosen(catalogue.read(args.catalogue, args.set), args.only)
    implementations = dict.fromkeys(args.implementations)
    if "natten" in implementations and importlib.util.find_spec("natten") is None:
        print("natten is not installed, so it is left out", file=sys.stderr)
        del implementations["natten"]
    version = f"torch {torch.__version__}"
    if torch.backends.cudnn.is_available():
        version += f", cuDNN {torch.backends.cudnn.version()}"
    writer = record.Writer(args.out, record.machine(args.device, version))
    for problem in problems:
        for name in implementations:
            run_row(problem, IMPLEMENTATIONS[name], args, writer)
            # The tensors of a row may fill the device.
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()
    writer.close()


if __name__ == "__main__":
    main()
