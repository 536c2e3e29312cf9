# Reads go.safetensors in the directory given and writes python.safetensors
# beside it. Prints what each holds, as
# {read or written: {name: [shape, float32 in hex]}}.
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

folder = pathlib.Path(sys.argv[1])
read = load_file(folder / "go.safetensors")
assert all(a.dtype == np.float32 for a in read.values()), "Go writes float32"

written = dict(read)
for t in "f2 f8 i1 i2 i4 i8 u1 u2 u4 u8".split():
    written["module.typed." + t] = np.array([[1, 0, 100]], dtype=t)
written["f2.all"] = np.arange(2**16, dtype="u2").view("f2")[: 0x7c00]  # all finite ones above 0
save_file(written, folder / "python.safetensors")


def text(tensors):
    return {name: [list(a.shape), a.astype("<f4").tobytes().hex()] for name, a in tensors.items()}


json.dump({"read": text(read), "written": text(written)}, sys.stdout)
