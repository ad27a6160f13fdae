"""Independent readers of quire's output: called by .ci/interop with its work directory and the original model."""
import glob
import json
import os
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

work, model = sys.argv[1], sys.argv[2]
ids = torch.tensor([[1, 403, 407, 261, 378]])
bad = 0


def report(ok, what):
    global bad
    bad += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def tensors(d):
    out = {}
    for f in sorted(glob.glob(os.path.join(d, "*.safetensors"))):
        out.update(load_file(f))
    return out


def ours(d):
    """Logits of quire's own forward over the quantized checkpoint, float32."""
    f = os.path.join(work, "logits.safetensors")
    subprocess.run([os.path.join(work, "quire"), "trace", d, "--input-ids", "-", "-o", f], input=b'{"input_ids":[1,403,407,261,378]}', check=True, stdout=subprocess.DEVNULL)
    with safe_open(f, "pt") as t:
        return t.get_tensor("p0.logits")


def dense(weights):
    """Logits of transformers with the given dequantized weights in place of the originals, float32."""
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    state = m.state_dict()
    fused = {}
    for name, w in weights.items():
        if name + ".weight" in state:
            state[name + ".weight"].copy_(w.float())
        else:  # this transformers keeps experts fused
            head, e, leaf = name.rsplit(".", 2)
            fused.setdefault(head, {})[(int(e), leaf)] = w.float()
    for head, parts in fused.items():
        for (e, leaf), w in parts.items():
            if leaf == "down_proj":
                state[head + ".down_proj"][e].copy_(w)
            else:
                both = state[head + ".gate_up_proj"][e]
                half = both.shape[0] // 2
                (both[:half] if leaf == "gate_proj" else both[half:]).copy_(w)
    m.load_state_dict(state)
    with torch.no_grad():
        return m(ids).logits[0]


def compressed_tensors(d):
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    bits = json.load(open(os.path.join(d, "config.json")))["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"]
    t = tensors(d)
    out = {}
    for name in t:
        if name.endswith(".weight_packed"):
            m = name[: -len(".weight_packed")]
            shape = torch.Size(t[m + ".weight_shape"].tolist())
            q = unpack_from_int32(t[name], bits, shape).float()
            s = t[m + ".weight_scale"].float()
            out[m] = q * s.repeat_interleave(shape[1] // s.shape[1], dim=1)
    return out


def gptq_like(d):
    from gptqmodel import BACKEND, GPTQModel

    awq = os.path.basename(d).startswith("awq")
    m = GPTQModel.load(d, device="cpu", backend=BACKEND.AWQ_TORCH if awq else BACKEND.TORCH)
    out = {}
    for name, mod in m.model.named_modules():
        if hasattr(mod, "qweight"):
            if awq:
                from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

                w = dequantize_gemm(mod.qweight, mod.qzeros, mod.scales.float(), mod.bits, mod.group_size)
            else:
                mod.scales = mod.scales.float()  # else it rounds the product to bf16
                w = mod.dequantize_weight()
            out[name.removeprefix("model.model.") if name.startswith("model.model.") else name] = w.T.contiguous().float()
    return out


for d in sorted(glob.glob(os.path.join(work, "*-[0-9]--*sym"))):
    name = os.path.basename(d)
    if d.endswith(".run"):
        continue
    try:
        source, written = tensors(model), tensors(d)  # the reference safetensors library, every file whole
        copied = [k for k in source if k in written]
        report(len(copied) > 10 and all(torch.equal(source[k], written[k]) for k in copied), f"{name}: safetensors loads {len(written)} tensors, {len(copied)} copied ones are equal")
        ct = name.startswith("compressed")
        if ct:
            _, info = AutoModelForCausalLM.from_pretrained(d, output_loading_info=True)
            keys = {k: sorted(info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(k)}
            report(not keys, f"{name}: transformers loads it {keys or ''}")
        weights = compressed_tensors(d) if ct else gptq_like(d)
        a, b = ours(d), dense(weights)
        err = ((a - b).abs().max() / b.abs().max()).item()
        report(len(weights) == 112 and err < 1e-5, f"{name}: {len(weights)} modules by their unpacker, logits differ by {err:.2g}")
    except Exception as e:  # noqa: BLE001: one format must not hide the others
        report(False, f"{name}: {type(e).__name__}: {e}")
sys.exit(bad > 0)
