"""Usage: reference.py FILE. Writes testdata/checkpoint/reference.safetensors with the reference library: one tensor of every dtype it can hold."""
import sys
import numpy as np
import torch
from safetensors.torch import save_file

r = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 8 - 1
t = {"f64": r.double(), "f32": r, "f16": r.half(), "bf16": r.bfloat16(), "f8_e4m3": r.to(torch.float8_e4m3fn), "f8_e5m2": r.to(torch.float8_e5m2),
     "i64": r.to(torch.int64), "i32": (r * 1000).to(torch.int32), "i16": (r * 100).to(torch.int16), "i8": (r * 40).to(torch.int8), "u8": (r.abs() * 40).to(torch.uint8),
     "bool": r > 0, "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 7), "name with \" and é": torch.ones(1)}
if hasattr(torch, "float8_e8m0fnu"):
    t["f8_e8m0"] = torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float8_e8m0fnu)
save_file(t, sys.argv[1], metadata={"format": "pt"})
