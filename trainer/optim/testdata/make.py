"""Makes torch.json, PyTorch's numbers for the tests: pip install torch numpy.

The parameters and their gradients are drawn once, and every case goes 20 steps
with them. Numbers are the shortest decimals that give the float32 back.
"""
import json
import pathlib

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

STEPS = 20
SHAPES = {"fc1.weight": [4, 2], "fc1.bias": [4], "norm.weight": [4], "fc2.weight": [2, 4]}

g = torch.Generator().manual_seed(1)
start = {name: torch.randn(shape, generator=g) for name, shape in SHAPES.items()}
# Steps differ in size, so that clipping acts on some and not on others.
grads = [{name: torch.randn(shape, generator=g) * 2.0 ** (k % 5 - 2) for name, shape in SHAPES.items()} for k in range(STEPS)]


def numbers(tensors):
    return {name: [float(str(x)) for x in t.detach().flatten().numpy()] for name, t in tensors.items()}


def run(make, kwargs, recipe=False, clip=None, value=None, skip=()):
    """Values after each step; skip is (step, name) that has no gradient."""
    params = {name: t.clone().requires_grad_() for name, t in start.items()}
    groups = [{"params": list(params.values())}]
    if recipe:
        groups = [
            {"params": [p for p in params.values() if p.dim() > 1]},
            {"params": [p for p in params.values() if p.dim() <= 1], "weight_decay": 0.0},
        ]
    opt = make(groups, **kwargs)
    steps, norms = [], []
    for k in range(STEPS):
        for name, p in params.items():
            p.grad = None if (k, name) in skip else grads[k][name].clone()
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), clip)))
        if value is not None:
            torch.nn.utils.clip_grad_value_(params.values(), value)
        opt.step()
        steps.append(numbers(params))
    return {"steps": steps, **({"norms": norms} if norms else {})}


SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
momentum = {"lr": 0.1, "momentum": 0.9}
late = [(0, "fc1.bias"), (3, "fc1.weight"), (3, "fc1.bias"), (7, "fc2.weight")]
cases = {
    "sgd": run(SGD, {"lr": 0.1}),
    "sgd momentum": run(SGD, momentum),
    "sgd decay": run(SGD, {**momentum, "weight_decay": 0.05}),
    "sgd nesterov": run(SGD, {**momentum, "weight_decay": 0.05, "nesterov": True}, recipe=True),
    "sgd norm": run(SGD, momentum, clip=1.5),
    "sgd norm value": run(SGD, momentum, clip=3, value=0.5),
    "sgd value": run(SGD, {"lr": 0.1}, value=0.5),
    "sgd skip": run(SGD, {**momentum, "weight_decay": 0.05}, skip=late, clip=1.5),
    "adamw": run(AdamW, {"lr": 0.01, "weight_decay": 0.0}),
    "adamw decay": run(AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw recipe": run(AdamW, {"lr": 0.01, "weight_decay": 0.1}, recipe=True),
    "adamw betas": run(AdamW, {"lr": 0.01, "weight_decay": 0.01, "betas": (0.0, 0.9), "eps": 1e-3}),
    "adamw norm": run(AdamW, {"lr": 0.01, "weight_decay": 0.01}, clip=1.5),
}


def rates(lr, make, steps=STEPS):
    opt = SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule, rates = make(opt), []
    for _ in range(steps):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return rates


def warmup(steps, share, then):
    return lambda opt: SequentialLR(opt, [LinearLR(opt, share, 1.0, steps), then(opt)], [steps])


schedules = {
    "linear": rates(0.1, lambda opt: LinearLR(opt, 1.0, 0.0, 10)),
    "step": rates(0.1, lambda opt: StepLR(opt, 3, 0.5)),
    "cosine": rates(0.1, lambda opt: CosineAnnealingLR(opt, STEPS - 1, 0.01)),
    "cosine past its end": rates(0.1, lambda opt: CosineAnnealingLR(opt, 10, 0.01)),
    "warmup constant": rates(0.1, warmup(5, 1 / 3, lambda opt: StepLR(opt, 1000))),
    "warmup step": rates(0.1, warmup(5, 0.1, lambda opt: StepLR(opt, 3, 0.5))),
    "warmup cosine": rates(0.1, warmup(5, 0.01, lambda opt: CosineAnnealingLR(opt, STEPS - 5, 0.001))),
}

with open(pathlib.Path(__file__).parent / "torch.json", "w") as f:
    def lines(name, records, last=False):
        f.write(f'"{name}": {{\n' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in records.items()) + ("\n}\n" if last else "\n},\n"))

    f.write("{\n")
    f.write(f'"torch": {json.dumps(torch.__version__)},\n')
    f.write(f'"parts": {json.dumps([{"name": name, "shape": shape} for name, shape in SHAPES.items()])},\n')
    f.write(f'"start": {json.dumps(numbers(start))},\n')
    f.write('"grads": [\n' + ",\n".join(json.dumps(numbers(step)) for step in grads) + "\n],\n")
    lines("cases", cases)
    lines("schedules", schedules, last=True)
    f.write("}\n")
