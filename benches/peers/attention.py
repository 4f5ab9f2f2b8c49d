"""The implementations that are compared, each behind the same few functions."""

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import mask

# The backward pass is run again and again on one graph, which donated buffers do not survive.
functorch_config.donated_buffer = False


class Prepared:
    """Tensors of a problem on the device, and the forward pass over them."""

    def __init__(self, problem, dtype, device, shape, head_axis, forward):
        generator = torch.Generator(device=device).manual_seed(42)

        def normal(heads, dim):
            size = shape(heads, dim)
            return torch.randn(size, generator=generator, device=device, dtype=dtype)

        self.query = normal(problem.heads, problem.head_dim)
        self.key = normal(problem.heads_kv, problem.head_dim)
        self.value = normal(problem.heads_kv, problem.head_dim_v)
        self.grad_out = normal(problem.heads, problem.head_dim_v)
        self.head_axis = head_axis
        self._forward = forward

    def inputs(self):
        return self.query, self.key, self.value

    def forward(self):
        """The forward pass alone, without a graph."""
        with torch.no_grad():
            return self._forward(*self.inputs())

    def backward(self):
        """A function that runs the backward pass alone: `(grad_query, grad_key, grad_value)`."""
        inputs = [tensor.detach().requires_grad_() for tensor in self.inputs()]
        out = self._forward(*inputs)
        return lambda: torch.autograd.grad(out, inputs, self.grad_out, retain_graph=True)

    def head(self, tensor, batch, head):
        """`[tokens, head_dim]` of one head of one sample."""
        return tensor[batch].select(self.head_axis, head).reshape(-1, tensor.shape[-1])


def heads_first(problem, dtype, device, forward):
    """`[batch, heads, tokens, head_dim]`, which PyTorch's own operators take."""

    def shape(heads, dim):
        return (problem.batch, heads, problem.tokens, dim)

    return Prepared(problem, dtype, device, shape, 0, forward)


class Sdpa:
    """Dense attention over all tokens, which is what a neighborhood is compared with."""

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def label(self, problem):
        return self.name if problem.is_dense else f"{self.name} dense"

    def keys(self, problem, query):
        """The keys that a query sees here."""
        return problem.keys(query) if problem.is_dense else list(range(problem.tokens))

    def prepare(self, problem, dtype, device, options):
        del options

        def forward(query, key, value):
            with sdpa_kernel(self.backend):
                return F.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    is_causal=problem.is_causal,
                    scale=problem.scale,
                    enable_gqa=problem.heads != problem.heads_kv,
                )

        return heads_first(problem, dtype, device, forward)


class Flex:
    """Compiled flex_attention with the mask of the problem."""

    def label(self, problem):
        del problem
        return "flex_attention"

    def keys(self, problem, query):
        return problem.keys(query)

    def prepare(self, problem, dtype, device, options):
        # Every problem is compiled for itself, and compiled code of others is dropped.
        torch._dynamo.reset()
        blocks = mask.block_mask(problem, device, options.mask_limit)
        compiled = torch.compile(flex_attention, dynamic=False)

        def forward(query, key, value):
            return compiled(
                query,
                key,
                value,
                block_mask=blocks,
                scale=problem.scale,
                enable_gqa=problem.heads != problem.heads_kv,
            )

        return heads_first(problem, dtype, device, forward)


class Natten:
    """NATTEN with its own choice of kernel; heads last, permutation of tokens included."""

    def label(self, problem):
        del problem
        return "NATTEN"

    def keys(self, problem, query):
        return problem.keys(query)

    def prepare(self, problem, dtype, device, options):
        del options
        if problem.is_dense:
            raise ValueError("skipped: a dense problem")
        import natten

        operator = (natten.na1d, natten.na2d, natten.na3d)[len(problem.axes) - 1]
        parameters = {
            name: tuple(getattr(axis, name) for axis in problem.axes)
            for name in ("kernel_size", "stride", "dilation", "is_causal")
        }

        def shape(heads, dim):
            return (problem.batch, *problem.space, heads, dim)

        def forward(query, key, value):
            return operator(query, key, value, scale=problem.scale, **parameters)

        return Prepared(problem, dtype, device, shape, len(problem.axes), forward)


IMPLEMENTATIONS = {
    "cudnn": Sdpa("cuDNN", SDPBackend.CUDNN_ATTENTION),
    "flash": Sdpa("FlashAttention-2", SDPBackend.FLASH_ATTENTION),
    "flex": Flex(),
    "natten": Natten(),
}
