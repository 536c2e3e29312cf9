"""Makes cnn.json, PyTorch's numbers for the net that CNN makes:

    python make.py > cnn.json

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


def cnn(rows, side, classes):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 5)
            self.bn1 = nn.BatchNorm2d(12)
            self.conv2 = nn.Conv2d(12, 32, 5)
            self.bn2 = nn.BatchNorm2d(32)
            self.fc = nn.Linear(32 * ((side - 12) // 4) ** 2, classes)

        def forward(self, x):
            x = self.bn1(nn.functional.max_pool2d(self.conv1(x), 2)).relu()
            x = self.bn2(nn.functional.max_pool2d(self.conv2(x), 2)).relu()
            return self.fc(x.flatten(1))

    net = Net()
    before = texts(net.state_dict().items())
    x, labels = torch.randn(rows, 1, side, side), torch.randint(classes, (rows,))
    loss = nn.functional.cross_entropy(net(x), labels)
    loss.backward()
    return {
        "rows": rows,
        "side": side,
        "classes": classes,
        "x": text(x),
        "labels": labels.tolist(),
        "loss": loss.item(),
        "before": before,
        "buffers": texts(net.named_buffers()),
        "grads": texts((name, p.grad) for name, p in net.named_parameters()),
    }


torch.manual_seed(1)
json.dump(cnn(6, 18, 5), sys.stdout)
