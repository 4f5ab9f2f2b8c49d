"""Whether a model of `nat_model` is right, before it is timed."""

import math

import torch

import exact
from nat_attention import gather, split
from nat_model import Nat

# Images whose logits are compared.
IMAGES = 4


def check(model, images, attend, dtype):
    """Raises `ValueError` if logits, attention or its gradients are wrong.

    Without `attend`, which is compiled for this alone in compiled blocks, logits are all.
    """
    bound = exact.BOUNDS[dtype]
    for name, found in errors(model, images, attend):
        if not found <= bound:
            raise ValueError(f"wrong: the error of {name} is {found:.1e}, the bound is {bound:.0e}")


def errors(model, images, attend):
    """What is compared, and its greatest difference over the greatest value."""
    yield "logits", logits(model, images)
    if attend is None:
        return
    blocks = {block.windows: block for stage in model.stages for block in stage}
    for windows, block in blocks.items():
        name = f"attention, {windows.side} x {windows.side}, dilation {windows.dilation}"
        yield name, attention(block, images, attend)


def logits(model, images):
    """Against the same weights in f32, eager and gathered."""
    plain = Nat(model.config, gather, images.device)
    plain.load_state_dict(model.state_dict())
    plain = plain.to(images.device).eval()
    with torch.no_grad():
        got = model.eval()(images)[:IMAGES]
        return difference(got, plain(images[:IMAGES].float()))


def attention(block, images, attend):
    """Of a block, alone and with gradients, against f32.

    Inputs have the strides that they have in the model, so that compiled code is that of the model.
    All samples are computed; gradients are those of the first, with which both are compared.
    """
    torch.manual_seed(3)
    like = {"device": images.device, "dtype": images.dtype}
    tokens, channels = block.windows.side**2, block.proj.out_features
    inputs = [torch.randn(len(images), tokens, 3 * channels, **like)]
    if block.rpb is not None:
        inputs.append(torch.randn(block.rpb.shape, **like))
    grad_out = torch.zeros(len(images), tokens, channels, **like)
    grad_out[0].normal_()

    def run(attend, qkv, *bias, grad_out):
        leaves = [tensor.detach().requires_grad_() for tensor in (qkv, *bias)]
        heads = split(leaves[0], block.heads)
        out = attend(*heads, leaves[1] if bias else None, block.windows).transpose(1, 2).flatten(2)
        of_qkv, *of_bias = torch.autograd.grad(out, leaves, grad_out)
        return [out[0], of_qkv[0], *of_bias]

    got = run(attend, *inputs, grad_out=grad_out)
    qkv, *bias = (tensor.float() for tensor in inputs)
    expected = run(gather, qkv[:1], *bias, grad_out=grad_out[:1].float())
    return max(difference(*pair) for pair in zip(got, expected))


def difference(got, expected):
    found = ((got.float() - expected).abs().max() / expected.abs().max()).item()
    return math.inf if math.isnan(found) else found
