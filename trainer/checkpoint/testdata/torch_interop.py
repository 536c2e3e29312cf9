# Writes the state of a trained model into the first file, its names as
# DistributedDataParallel gives them, and says "saved". At the end of the input
# a new model takes its state from the second file, and must equal the first.
import sys

import torch
from safetensors.torch import load_file, save_file


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


torch.manual_seed(1)
trained = model()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for _ in range(3):
    trained(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()

save_file({"module." + name: t for name, t in trained.state_dict().items()}, sys.argv[1])
print("saved", flush=True)
sys.stdin.read()
loaded = model()
loaded.load_state_dict(load_file(sys.argv[2]))
for name, t in trained.state_dict().items():
    got = loaded.state_dict()[name]
    assert got.dtype == t.dtype and torch.equal(got, t), f"{name} is {got}, want {t}"
