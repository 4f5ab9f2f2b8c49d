"""The model that `benches/nat_step` times, and NAT and DiNAT as `burn_natten::models` has them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from nat_attention import Windows, split


@dataclass(frozen=True)
class Config:
    """Sizes of a model; tuples have a number for each stage."""

    dims: tuple
    heads: tuple
    depths: tuple
    side: int = 224
    # Smaller where a stage is.
    kernel_size: int = 7
    # Of every second block; 1 in the others.
    dilations: tuple = (1, 1, 1, 1)
    position_bias: bool = True
    # Probability that the last block skips a branch while training; falls evenly to 0 at the first.
    drop_path: float = 0.0
    classes: int = 1000
    # Of the convolutions between stages.
    halving_bias: bool = False

    def stage_side(self, stage):
        return -(-self.side // (4 << stage))

    def window(self, stage, block):
        """Side, kernel size and dilation in a block."""
        side = self.stage_side(stage)
        kernel_size = min(self.kernel_size, side)
        dilation = self.dilations[stage] if block % 2 else 1
        if kernel_size * dilation > side:
            raise ValueError(
                f"side: is {self.side}, which gives stage {stage} {side} tokens a side, "
                f"must be at least {kernel_size} * {dilation} there"
            )
        return side, kernel_size, dilation


_MINI = Config((64, 128, 256, 512), (2, 4, 8, 16), (3, 4, 6, 5), drop_path=0.2)

MODELS = {
    # NAT-Mini without biases by position and without drop path.
    "mini": Config(
        _MINI.dims, _MINI.heads, _MINI.depths, position_bias=False, halving_bias=True
    ),
    "nat-mini": _MINI,
    "dinat-tiny": Config(
        _MINI.dims, _MINI.heads, (3, 4, 18, 5), dilations=(8, 4, 2, 1), drop_path=0.2
    ),
    # For a CPU.
    "tiny": Config(
        (16, 32, 64, 128), (1, 2, 4, 8), (1, 2, 1, 1), 64, position_bias=False, classes=10,
        halving_bias=True,
    ),
}


class Block(nn.Module):
    """Attention, then an MLP, each normalized before and added to its input: `[batch, tokens, dim]`."""

    def __init__(self, dim, heads, windows, attend, position_bias, drop_path):
        super().__init__()
        self.heads, self.windows, self.attend = heads, windows, attend
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)
        extent = windows.extent
        self.rpb = nn.Parameter(0.02 * torch.randn(heads, extent, extent)) if position_bias else None
        self.drops = drop_path > 0.0
        # A tensor, so that compiled blocks of other rates are the same program.
        self.register_buffer("keep", torch.tensor(1.0 - drop_path))

    def forward(self, tokens):
        query, key, value = split(self.qkv(self.norm1(tokens)), self.heads)
        heads = self.attend(query, key, value, self.rpb, self.windows)
        tokens = tokens + self.drop(self.proj(heads.transpose(1, 2).flatten(2)))
        return tokens + self.drop(self.fc2(F.gelu(self.fc1(self.norm2(tokens)))))

    def drop(self, branch):
        """Stochastic depth: the whole branch of a sample, while training."""
        if not (self.training and self.drops):
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) < self.keep
        return branch * (kept / self.keep).to(branch.dtype)


class Convolutions(nn.Module):
    """Each halves the sides; a norm comes last. `[batch, channels, ..]` to `[batch, tokens, dim]`."""

    def __init__(self, channels, bias):
        super().__init__()
        pairs = zip(channels, channels[1:])
        layers = (nn.Conv2d(old, new, 3, 2, 1, bias=bias) for old, new in pairs)
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(channels[-1])

    def forward(self, images):
        return self.norm(self.layers(images).permute(0, 2, 3, 1)).flatten(1, 2)


class Nat(nn.Module):
    """Classifies images, `[batch, 3, side, side]` to `[batch, classes]`.

    `attend` is among `nat_attention.WAYS`, `run` calls a block with its input, which a compiled
    function can do.
    """

    def __init__(self, config, attend, device, run=Block.forward):
        super().__init__()
        self.config, self.run, windows = config, run, {}

        def windows_of(*key):
            if key not in windows:
                windows[key] = Windows(*key, device)
            return windows[key]

        rates = iter(torch.linspace(0.0, config.drop_path, sum(config.depths)).tolist())
        embed, *wider = config.dims
        self.stem = Convolutions([3, embed // 2, embed], True)
        pairs = zip(config.dims, wider)
        self.halve = nn.ModuleList(Convolutions(pair, config.halving_bias) for pair in pairs)
        self.stages = nn.ModuleList(
            nn.ModuleList(
                Block(
                    dim,
                    config.heads[stage],
                    windows_of(*config.window(stage, block)),
                    attend,
                    config.position_bias,
                    next(rates),
                )
                for block in range(config.depths[stage])
            )
            for stage, dim in enumerate(config.dims)
        )
        self.norm = nn.LayerNorm(config.dims[-1])
        self.head = nn.Linear(config.dims[-1], config.classes)

    def forward(self, images):
        tokens = self.stem(images)
        for stage, blocks in enumerate(self.stages):
            if stage > 0:
                side = self.config.stage_side(stage - 1)
                # A view of the tokens, which are in the order that convolutions like best.
                tokens = self.halve[stage - 1](tokens.unflatten(1, (side, side)).permute(0, 3, 1, 2))
            for block in blocks:
                tokens = self.run(block, tokens)
        return self.head(self.norm(tokens).mean(1))
