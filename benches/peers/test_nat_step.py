"""The model of `nat_step.py`. `python3 -m unittest discover benches/peers`"""

import unittest
from dataclasses import replace

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

import exact
import nat_check
from catalogue import Axis, Problem
from nat_attention import Windows, flex_with, gather
from nat_model import MODELS, Block, Nat

SMALL = replace(
    MODELS["dinat-tiny"], dims=(16, 32, 64), heads=(1, 2, 4), depths=(2, 4, 3), side=64,
    kernel_size=4, dilations=(4, 2, 1), classes=10,
)


def model_of(config, attend=gather, run=Block.forward):
    torch.manual_seed(1)
    return Nat(config, attend, "cpu", run)


class AttentionTest(unittest.TestCase):
    def check(self, attend):
        """All tokens against the definition."""
        for side, kernel_size, dilation in [(9, 3, 2), (7, 5, 1), (4, 4, 1)]:
            windows = Windows(side, kernel_size, dilation, "cpu")
            axis = Axis(side, kernel_size, 1, dilation)
            problem = Problem("map", 1, 2, 2, 8, 8, 8**-0.5, False, (axis, axis), {}, {})
            query, key, value = torch.randn(3, 1, 2, side**2, 8).unbind(0)
            extent = windows.extent
            bias = torch.randn(2, extent, extent)
            with torch.no_grad():
                got = attend(query, key, value, bias, windows)
                without = attend(query, key, value, None, windows)
            for token in range(side**2):
                keys = problem.keys(token)
                here = torch.tensor(problem.coordinates(token))
                there = torch.tensor([problem.coordinates(key) for key in keys])
                row, column = ((there - here) // dilation + kernel_size - 1).unbind(1)
                scores = (key[0][:, keys] @ query[0, :, token, :, None]).squeeze(2) * problem.scale
                for found, added in [(got, bias[:, row, column]), (without, 0.0)]:
                    weights = (scores + added).softmax(1)
                    expected = (weights[:, None] @ value[0][:, keys]).squeeze(1)
                    difference = (found[0, :, token] - expected).abs().max()
                    self.assertLess(difference, 1e-5, f"{side} {kernel_size} {dilation} {token}")

    def test_gathered(self):
        self.check(gather)

    def test_flex_attention(self):
        self.check(flex_with(torch.compile(flex_attention, backend="eager", dynamic=False)))


class ModelTest(unittest.TestCase):
    def test_models_have_the_published_sizes(self):
        for name, millions in [("mini", 20.0), ("nat-mini", 20.0), ("dinat-tiny", 27.9)]:
            count = sum(parameter.numel() for parameter in model_of(MODELS[name]).parameters())
            self.assertAlmostEqual(count * 1e-6, millions, 1)

    def test_windows_have_to_fit(self):
        with self.assertRaisesRegex(ValueError, "side: is 32, which gives stage 0 8 tokens a side"):
            model_of(replace(SMALL, side=32))

    def test_errors_are_found(self):
        images = torch.randn(5, 3, 64, 64)
        model = model_of(SMALL)
        nat_check.check(model, images, gather, "f32")
        rounded = model_of(SMALL).bfloat16()
        nat_check.check(rounded, images.bfloat16(), gather, "bf16")

        def wrong(query, key, value, bias, windows):
            return gather(query, key, value, bias, windows) * 1.01

        found = dict(nat_check.errors(model, images, wrong))
        self.assertEqual(len(found), 1 + 5)
        for name, error in found.items():
            if name != "logits":
                self.assertGreater(error, exact.BOUNDS["f32"], name)

    def test_blocks_of_a_stage_are_one_program(self):
        images = torch.randn(2, 3, 64, 64)
        for trains in (False, True):
            torch._dynamo.reset()
            counter = CompileCounterWithBackend("eager")
            run = torch.compile(Block.forward, backend=counter, dynamic=False, fullgraph=True)
            model = model_of(SMALL, run=run).train(trains)
            if trains:
                model(images).sum().backward()
            else:
                self.assertLess(nat_check.logits(model, images), 1e-5)
            # The first block, which drops nothing, is one of its own while training.
            self.assertLessEqual(counter.frame_count, 5 + trains)

    def test_branches_are_dropped_while_training(self):
        block = model_of(replace(SMALL, drop_path=0.5)).stages[2][2]
        branch = torch.ones(400, 1, 1)
        self.assertTrue(torch.equal(block.eval().drop(branch), branch))
        dropped = block.train().drop(branch)
        self.assertEqual(set(dropped.flatten().tolist()), {0.0, 2.0})
        self.assertAlmostEqual(dropped.mean().item(), 1.0, delta=0.3)


if __name__ == "__main__":
    unittest.main()
