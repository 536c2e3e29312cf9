# Makes python.safetensors, which the tests read: pip install safetensors numpy.
import numpy as np
from safetensors.numpy import save_file

save_file({
    "fc1.weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "fc1.bias": np.array([np.nan, -0.0], dtype=np.float32),
    "scale": np.array(1.5, dtype=np.float32),
    "none": np.zeros((0, 4), dtype=np.float32),
}, "python.safetensors", metadata={"format": "pt"})
