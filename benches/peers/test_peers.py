"""The masks and the bookkeeping of the peers. `python3 -m unittest discover benches/peers`"""

import csv
import os
import random
import tempfile
import unittest

import torch

import catalogue
import exact
import mask
import record
import timing
from attention import IMPLEMENTATIONS
from catalogue import Axis, Problem


def problem_of(axes, is_dense=False, heads=2, heads_kv=2):
    nothing = {"forward": 0, "backward": 0}
    return Problem("made-up", 1, heads, heads_kv, 8, 8, 0.4, is_dense, tuple(axes), nothing, {})


def random_axis(generator):
    length = generator.randint(2, 14)
    kernel_size = generator.randint(2, length)
    return Axis(
        length,
        kernel_size,
        generator.randint(1, kernel_size),
        generator.randint(1, length // kernel_size),
        generator.random() < 0.4,
    )


class MaskTest(unittest.TestCase):
    def test_the_mask_is_the_definition(self):
        generator = random.Random(1)
        for case in range(150):
            axes = [random_axis(generator) for _ in range(case % 3 + 1)]
            if len(axes) == 3:
                axes = [axis for axis in axes if axis.length < 8] or axes[:1]
            problem = problem_of(axes)
            tokens = torch.arange(problem.tokens)
            got = mask.mask_mod(problem)(0, 0, tokens[:, None], tokens[None, :])
            got = got.expand(problem.tokens, problem.tokens)
            for query in range(problem.tokens):
                expected = torch.zeros(problem.tokens, dtype=torch.bool)
                expected[problem.keys(query)] = True
                self.assertTrue(torch.equal(got[query], expected), f"{axes} query {query}")

    def test_windows_by_hand(self):
        self.assertEqual(Axis(9, 3).window(0), [0, 1, 2])
        self.assertEqual(Axis(9, 3).window(8), [6, 7, 8])
        self.assertEqual(Axis(9, 3, dilation=2).window(4), [2, 4, 6])
        self.assertEqual(Axis(9, 3, is_causal=True).window(4), [2, 3, 4])
        self.assertEqual(Axis(9, 3, stride=3).window(5), [3, 4, 5])
        self.assertEqual(Axis(9, 4).window(4), [2, 3, 4, 5])

    def test_a_mask_over_the_limit_is_skipped(self):
        with self.assertRaisesRegex(ValueError, "skipped: the block mask of 12 tokens"):
            mask.block_mask(problem_of([Axis(12, 3)]), "cpu", 100)


class ExactTest(unittest.TestCase):
    def check(self, name, problem):
        implementation = IMPLEMENTATIONS[name]
        options = type("Options", (), {"mask_limit": 1e9})
        prepared = implementation.prepare(problem, torch.float32, "cpu", options)
        # flex_attention has no backward pass on CPUs.
        passes = ["forward"] if name == "flex" else ["forward", "backward"]

        def errors():
            return [exact.error(problem, implementation, prepared, which) for which in passes]

        for error in errors():
            self.assertTrue(0.0 < error < 1e-5, error)
        right = prepared._forward
        prepared._forward = lambda *inputs: right(*inputs) * 1.01
        for error in errors():
            self.assertGreater(error, exact.BOUNDS["f32"])

    def test_dense_attention(self):
        self.check("flash", problem_of([Axis(20, 20)], is_dense=True))
        self.check("flash", problem_of([Axis(20, 20, is_causal=True)], is_dense=True))
        self.check("flash", problem_of([Axis(20, 5)]))

    def test_flex_attention(self):
        self.check("flex", problem_of([Axis(12, 5, 2, 2), Axis(11, 3, is_causal=True)]))


class BookkeepingTest(unittest.TestCase):
    def test_rows_have_all_columns(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "peers.csv")
            writer = record.Writer(path, record.machine("cpu", "torch"))
            row = {"problem": "p", "pass": "forward", "implementation": "i", "dtype": "f32"}
            writer.write(**row, mode="burst", ms=1.5)
            writer.write(**row, mode="sustained", note="skipped, for some reason")
            writer.close()
            with open(path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.assertEqual(list(rows[0]), record.COLUMNS)
        self.assertEqual([row["ms"] for row in rows], ["1.5", ""])
        self.assertEqual(rows[1]["note"], "skipped, for some reason")

    def test_quartiles_and_batches(self):
        quartiles = timing.Timing([9.0, 1.0, 5.0, 3.0, 7.0], 5).quartiles()
        self.assertEqual(quartiles, [3.0, 5.0, 7.0])
        calls = timing.batch_size(lambda calls: 30e-6 + 7e-6 * calls)
        self.assertGreaterEqual(30e-6 + 7e-6 * calls, timing.MIN_SAMPLE)

    def test_a_problem_is_read_from_its_object(self):
        entry = {
            "name": "p", "set": "all", "batch": 1, "heads": 4, "heads_kv": 2, "head_dim": 8,
            "head_dim_v": 8, "scale": 0.5, "is_dense": False, "length": [6, 9],
            "kernel_size": [3, 5], "stride": [1, 2], "dilation": [2, 1],
            "is_causal": [False, True],
            "forward": {"flops": 1, "bytes": {"2": 10, "4": 20}},
            "backward": {"flops": 2, "bytes": {"2": 30, "4": 40}},
        }
        problem = catalogue.problem(entry)
        self.assertEqual(problem.axes, (Axis(6, 3, 1, 2, False), Axis(9, 5, 2, 1, True)))
        self.assertEqual((problem.tokens, problem.bytes["backward"][2]), (54, 30))
        self.assertEqual(problem.coordinates(problem.token((4, 7))), (4, 7))


if __name__ == "__main__":
    unittest.main()
