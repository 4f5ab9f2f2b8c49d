"""The implementations that packed batches are compared with, each behind the same few functions."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from ragged_mask import block_mask

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None


class Prepared:
    """Tensors of a batch on the device; `head_axis` is 0 or 1, tokens are the other one."""

    def __init__(self, packed, dtype, device, head_axis, forward):
        generator = torch.Generator(device=device).manual_seed(42)
        shape = [packed.tokens, packed.tokens, packed.head_dim]
        shape[head_axis] = packed.heads
        self.query, self.key, self.value, self.grad_out = (
            torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(4)
        )
        self.head_axis, self._forward = head_axis, forward

    def forward(self):
        """The forward pass alone, without a graph."""
        with torch.no_grad():
            return self._forward(self.query, self.key, self.value)

    def both(self):
        """Both passes: `(out, grad_query, grad_key, grad_value)`."""
        inputs = [tensor.detach().requires_grad_() for tensor in (self.query, self.key, self.value)]
        out = self._forward(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, self.grad_out)

    def rows(self, tensor, head, start, end):
        """`[tokens, head_dim]` of one head."""
        return tensor.select(self.head_axis, head)[start:end]


class Varlen:
    """FlashAttention over sequences of given lengths, dense in each."""

    is_dense = True

    def prepare(self, packed, dtype, device):
        ends = torch.tensor(packed.starts, dtype=torch.int32, device=device)
        longest = max(packed.lengths)

        def forward(query, key, value):
            tensors = (query, key, value, ends, ends, longest, longest)
            if varlen_attn is None:
                # Older versions have the operator beneath.
                operator = torch.ops.aten._flash_attention_forward
                return operator(*tensors, 0.0, packed.is_causal, False, scale=packed.scale)[0]
            window = (-1, 0) if packed.is_causal else (-1, -1)
            return varlen_attn(*tensors, scale=packed.scale, window_size=window)

        return Prepared(packed, dtype, device, 1, forward)


class Flex:
    """Compiled flex_attention with the mask of sequences and windows."""

    is_dense = False

    def prepare(self, packed, dtype, device):
        # Every batch is compiled for itself, and compiled code of others is dropped.
        torch._dynamo.reset()
        blocks = block_mask(packed, device)
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

        def forward(*inputs):
            inputs = (tensor[None] for tensor in inputs)
            return compiled(*inputs, block_mask=blocks, scale=packed.scale)[0]

        return Prepared(packed, dtype, device, 0, forward)


class Loop:
    """scaled_dot_product_attention of one sequence after the other, dense in each."""

    is_dense = True

    def __init__(self, backend):
        self.backend = backend

    def prepare(self, packed, dtype, device):
        def forward(query, key, value):
            # Split at once, as the gradient of each part alone would be as large as all.
            parts = zip(*(tensor.split(packed.lengths) for tensor in (query, key, value)))
            outs = []
            with sdpa_kernel(self.backend):
                for part in parts:
                    heads_first = (tensor.transpose(0, 1)[None] for tensor in part)
                    out = F.scaled_dot_product_attention(
                        *heads_first, is_causal=packed.is_causal, scale=packed.scale
                    )
                    outs.append(out[0].transpose(0, 1))
            return torch.cat(outs)

        return Prepared(packed, dtype, device, 1, forward)


IMPLEMENTATIONS = {
    "varlen": ("varlen FlashAttention-2", Varlen()),
    "flex": ("flex_attention", Flex()),
    "cudnn": ("cuDNN, one by one", Loop(SDPBackend.CUDNN_ATTENTION)),
    "flash": ("FlashAttention-2, one by one", Loop(SDPBackend.FLASH_ATTENTION)),
}
