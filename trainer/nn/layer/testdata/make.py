"""Makes golden.json, PyTorch's numbers for the layers of this package:

    python make.py > golden.json

Made with torch 2.15 on the CPU. A tensor is its float32 values, little-endian,
in base64.
"""

import base64
import json
import sys

import torch
from torch import nn


def text(tensor):
    return base64.b64encode(tensor.detach().float().numpy().tobytes()).decode()


def texts(tensors):
    return {name: text(t) for name, t in tensors}


def run(module, x, dy):
    """Output and gradients of one batch, parameters and buffers before, buffers after."""
    before = texts(module.state_dict().items())
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    return {
        "rows": x.shape[0],
        "x": text(x),
        "dy": text(dy),
        "y": text(y),
        "dx": text(x.grad),
        "before": before,
        "buffers": texts(module.named_buffers()),
        "grads": texts((name, p.grad) for name, p in module.named_parameters()),
    }


def once(module, *shape):
    x = torch.randn(*shape)
    return run(module, x, torch.randn_like(module(x)))


def conv(rows, c_in, c_out, height, width, kernel, stride, padding):
    sizes = {"In": c_in, "Out": c_out, "Height": height, "Width": width, "Kernel": kernel, "Stride": stride, "Padding": padding}
    return sizes | once(nn.Conv2d(c_in, c_out, kernel, stride, padding), rows, c_in, height, width)


def pool(rows, planes, height, width, size):
    return {"Height": height, "Width": width, "Size": size} | once(nn.MaxPool2d(size), rows, planes, height, width)


def norm(channels, spread, *batches):
    """Batches one after the other; then one in evaluation."""
    module = nn.BatchNorm2d(channels) if len(batches[0]) == 4 else nn.BatchNorm1d(channels)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    steps = []
    for i, shape in enumerate((*batches, batches[-1])):
        module.train(i < len(batches))
        module.zero_grad()
        x = torch.randn(*shape) * spread + torch.randn(channels).view(1, -1, *[1] * (len(shape) - 2)) * 3
        steps.append({"train": module.training} | run(module, x, torch.randn(*shape)))
    return {"Channels": channels, "steps": steps}


torch.manual_seed(1)
golden = {
    "conv": [
        conv(2, 1, 1, 4, 4, 3, 1, 1),
        conv(3, 2, 4, 6, 5, 3, 1, 1),
        conv(2, 3, 5, 7, 8, 3, 2, 1),
        conv(2, 2, 3, 5, 5, 5, 1, 0),
        conv(3, 2, 2, 3, 3, 2, 3, 2),
        conv(1, 2, 3, 9, 6, 1, 2, 0),
        conv(5, 2, 3, 13, 14, 3, 1, 1),
    ],
    "pool": [pool(2, 3, 4, 6, 2), pool(3, 2, 7, 5, 2), pool(1, 2, 9, 9, 3), pool(2, 1, 3, 3, 1)],
    "norm": [
        norm(3, 1, (4, 3, 5, 2), (6, 3, 5, 2)),
        norm(2, 0.01, (9, 2, 3, 3)),
        norm(5, 1, (7, 5), (3, 5), (8, 5)),
        norm(2, 1, (1, 2, 3, 1)),
    ],
}
json.dump(golden, sys.stdout)
