"""Packed batches of the peers. `python3 -m unittest discover benches/peers`"""

import os
import random
import tempfile
import time
import unittest

import torch

import exact
import ragged_exact
import ragged_mask
import ragged_sizes
from limit import Limit
from mask import BLOCK
from ragged_attention import Flex, Loop
from ragged_sizes import Packed

BATCHES = [
    Packed(((5, 6), (3, 3), (20, 9), (1, 17)), 2, 8, (4, 5), (2, 3)),
    Packed(((2, 3, 4), (3, 13, 5), (4, 4, 9)), 2, 8, (3, 4, 3), (1, 4, 2)),
    Packed(((20,), (1,), (300,), (128,), (7,)), 2, 8, is_causal=True),
    Packed(((200,), (90,)), 1, 8),
]


def matrix(packed, is_dense=False):
    """Which tokens see which, from the definition."""
    expected = torch.zeros(packed.tokens, packed.tokens, dtype=torch.bool)
    for number, (start, length) in enumerate(zip(packed.starts, packed.lengths)):
        for token in range(length):
            expected[start + token, start + packed.keys(number, token, is_dense)] = True
    return expected


class SizesTest(unittest.TestCase):
    def test_sizes_are_those_of_the_docs(self):
        for kind, count, shortest, longest in [
            ("images", 64, 16, 96), ("videos", 8, 8, 80), ("texts", 256, 128, 8192),
        ]:
            sizes = ragged_sizes.SIZES[kind]()
            self.assertEqual(sizes, ragged_sizes.SIZES[kind]())
            self.assertEqual(len(sizes), count)
            self.assertEqual(min(map(min, sizes)), shortest)
            self.assertEqual(max(map(max, sizes)), longest)

    def test_files_are_read_as_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sizes.txt")
            for kind in ragged_sizes.SIZES.values():
                ragged_sizes.write(path, kind())
                self.assertEqual(ragged_sizes.read(path), kind())

            def of(text):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                return ragged_sizes.read(path)

            self.assertEqual(of("4x4\n\n 2, 7\n"), [(4, 4), (2, 7)])
            for text, message in [
                ("", "has no sizes"), ("3 4\n5", "line 2 is '5', must be 2 numbers"),
                ("0", "line 1 is '0'"), ("a b", "line 1"), ("1 2 3 4", "must be 3 numbers"),
            ]:
                with self.assertRaisesRegex(ValueError, message):
                    of(text)

    def test_work_is_that_of_the_pairs(self):
        for packed in BATCHES:
            self.assertEqual(packed.pairs(), matrix(packed).sum())
        # As the profiler's own test has it.
        packed = Packed(((4, 4), (2, 7)), 1, 8, (3, 3))
        self.assertEqual(packed.pairs(), 16 * 9 + 14 * 6)
        self.assertEqual(packed.flops(), {"forward": 4 * 8 * 228, "both": 14 * 8 * 228})


class MaskTest(unittest.TestCase):
    def test_the_mask_is_the_definition(self):
        for packed in BATCHES:
            tokens = torch.arange(packed.tokens)
            got = ragged_mask.mask_mod(packed, "cpu")(0, 0, tokens[:, None], tokens[None, :])
            self.assertTrue(torch.equal(got, matrix(packed)))

    def test_blocks_hold_what_is_visible(self):
        kinds = set()
        for packed in BATCHES:
            blocks = ragged_mask.block_mask(packed, "cpu")
            count = -(-packed.tokens // BLOCK)
            expected = torch.zeros(count * BLOCK, count * BLOCK, dtype=torch.bool)
            expected[: packed.tokens, : packed.tokens] = matrix(packed)
            tiles = expected.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2)
            some, every = tiles.flatten(2).any(2), tiles.flatten(2).all(2)
            for want, counts, columns in [
                (some & ~every, blocks.kv_num_blocks, blocks.kv_indices),
                (every, blocks.full_kv_num_blocks, blocks.full_kv_indices),
            ]:
                for row in range(count):
                    got = columns[0, 0, row, : counts[0, 0, row]]
                    self.assertEqual(sorted(got.tolist()), want[row].nonzero().flatten().tolist())
            kinds |= {(bool(a), bool(b)) for a, b in zip(some.flatten(), every.flatten())}
        self.assertEqual(len(kinds), 3, "no blocks of some kind")


class ImplementationTest(unittest.TestCase):
    def test_one_by_one(self):
        loop = Loop([torch.nn.attention.SDPBackend.MATH])
        for packed in BATCHES:
            prepared = loop.prepare(packed, torch.float32, "cpu")
            for found in ragged_exact.errors(packed, loop, prepared).values():
                self.assertTrue(0.0 < found < 1e-5, found)
            right = prepared._forward
            prepared._forward = lambda *inputs: right(*inputs) * 1.01
            for found in ragged_exact.errors(packed, loop, prepared).values():
                self.assertGreater(found, exact.BOUNDS["f32"])

    def test_flex_attention(self):
        # It has no backward pass on CPUs.
        packed = BATCHES[0]
        prepared = Flex().prepare(packed, torch.float32, "cpu")
        out = prepared.forward()
        for head in range(packed.heads):
            query, key, value = (tensor[head] for tensor in (prepared.query, prepared.key, prepared.value))
            scores = (packed.scale * query @ key.T).masked_fill(~matrix(packed), -torch.inf)
            self.assertLess((out[head] - scores.softmax(1) @ value).abs().max(), 1e-5)


class LimitTest(unittest.TestCase):
    def test_what_takes_too_long_is_broken_off(self):
        limit = Limit(30.0)
        with self.assertRaisesRegex(ValueError, "skipped: takes more than 0 s"):
            with limit.within(0.05):
                while True:
                    random.random()
        with limit.within():
            time.sleep(0.01)
        with self.assertRaisesRegex(ValueError, "skipped: the time of the run is used up"):
            with Limit(0.0).within():
                self.fail("runs")


if __name__ == "__main__":
    unittest.main()
