"""GPTQModel's own GPTQ class on request, for BenchmarkAgainstGPTQModel.

Reads lines "OUT IN" from stdin; for each it makes a new statistic of the shape, runs quantize() (damping, inverse,
act-group-aware column loop; 4 bits, groups of 128) and prints the wall and the CPU seconds of quantize() alone.
"""
import os
import sys
import time

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the library prints

import torch
from gptqmodel.looper.named_module import NamedModule
from gptqmodel.quantization import config
from gptqmodel.quantization.gptq import GPTQ

gen = torch.Generator().manual_seed(0)
rows = {}
for line in sys.stdin:
    o, i = map(int, line.split())
    linear = torch.nn.Linear(i, o, bias=False)
    linear.weight.data.copy_(torch.randn(o, i, generator=gen) * 0.02)
    if i not in rows:  # 64 common factors and noise, as in the Go side's layer
        rows[i] = torch.randn(2 * i, 64, generator=gen) @ torch.randn(64, i, generator=gen) * 0.2 + torch.randn(2 * i, i, generator=gen)
    x = rows[i] * (0.5 + torch.rand(i, generator=gen))
    g = GPTQ(NamedModule(linear, name="linear", full_name="model.layers.0.linear", layer_index=0),
             qcfg=config.GPTQConfig(bits=4, group_size=128, device="cpu"))
    g.quantizer.configure(perchannel=True)
    g.add_batch(x[None], None)
    with torch.inference_mode():
        t, c = time.perf_counter(), time.process_time()
        g.quantize()
        print(time.perf_counter() - t, time.process_time() - c, file=out, flush=True)
