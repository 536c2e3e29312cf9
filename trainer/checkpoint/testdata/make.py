# Makes python.safetensors and types.safetensors, which the tests read:
# pip install safetensors numpy torch.
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

save_file({
    "fc1.weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "fc1.bias": np.array([np.nan, -0.0], dtype=np.float32),
    "scale": np.array(1.5, dtype=np.float32),
    "none": np.zeros((0, 4), dtype=np.float32),
}, "python.safetensors", metadata={"format": "pt"})

inf = float("inf")
save_torch({
    "F64": torch.tensor([0.1, 1e-45, -0.0, inf], dtype=torch.float32).double(),
    "F16": torch.tensor([0.1, 65504, 6e-8, -0.0, -inf], dtype=torch.float16),
    "BF16": torch.tensor([0.1, 3e38, 1e-40, -0.0, -inf], dtype=torch.bfloat16),
    "I64": torch.tensor([-(2**63), 2**24, 2**62 + 2**39]),
    "I32": torch.tensor([-(2**31), 2**24 + 2], dtype=torch.int32),
    "I16": torch.tensor([-(2**15), 2**15 - 1], dtype=torch.int16),
    "I8": torch.tensor([-128, 127], dtype=torch.int8),
    "U64": torch.tensor([2**63, 7], dtype=torch.uint64),
    "U32": torch.tensor([2**32 - 2**8], dtype=torch.uint32),
    "U16": torch.tensor([2**16 - 1], dtype=torch.uint16),
    "U8": torch.tensor([255, 0], dtype=torch.uint8),
    "num_batches_tracked": torch.tensor(500),
}, "types.safetensors", metadata={"format": "pt"})
