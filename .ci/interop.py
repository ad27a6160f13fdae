"""Independent readers of quire's output: called by .ci/interop with its work directory and the original model."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
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


def decisions(d):
    """What the run's ledger says was decided: {module: {codes, scales, zeros, gidx}}."""
    with tempfile.TemporaryDirectory() as t:
        subprocess.run([os.path.join(work, "decisions"), d + ".run", t], check=True)
        out = {}
        for k, v in load_file(os.path.join(t, "decisions.safetensors")).items():
            m, leaf = k.rsplit(".", 1)
            out.setdefault(m, {})[leaf] = v
        return out


class Read:
    """One module as another tool reads it: codes [out,in], zeros and scales [out,G], weights [out,in] in the tool's own
    dtype (w) and from float32 scales (w32)."""

    def __init__(self, codes, zeros, scales, w, w32):
        self.codes, self.zeros, self.scales, self.w, self.w32 = codes, zeros, scales, w, w32


def compressed_tensors(d):
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationConfig

    scheme = QuantizationConfig(**json.load(open(os.path.join(d, "config.json")))["quantization_config"]).config_groups["group_0"]
    bits = scheme.weights.num_bits
    t = tensors(d)
    for name in list(t):
        if name.endswith(".weight_packed"):
            m = name[: -len(".weight_packed")]
            q = unpack_from_int32(t[name], bits, torch.Size(t[m + ".weight_shape"].tolist())).int() + 2 ** (bits - 1)
            s = t[m + ".weight_scale"]
            mine = {k[len(m) + 1 :]: v for k, v in t.items() if k.startswith(m + ".")}
            w, w32 = (PackedQuantizationCompressor.decompress(mine | {"weight_scale": x}, scheme)["weight"] for x in (s, s.float()))
            yield m, Read(q, torch.full(s.shape, 2 ** (bits - 1)), s, w, w32)


def gptq_like(d):
    from gptqmodel import BACKEND, GPTQModel
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm, reverse_awq_order, unpack_awq

    awq = os.path.basename(d).startswith("awq")
    m = GPTQModel.load(d, device="cpu", backend=BACKEND.AWQ_TORCH if awq else BACKEND.TORCH)
    # GPTQModel fills its modules without a loading report: compare its state with the file, key by key.
    state, file = set(m.model.state_dict()), set(tensors(d))
    missing, unexpected = sorted(state - file), sorted(file - state)
    report(not missing and not unexpected, f"{os.path.basename(d)}: gptqmodel loads {len(file & state)} keys, missing {missing[:3]}, unexpected {unexpected[:3]}")
    for name, mod in m.model.named_modules():
        if not hasattr(mod, "qweight"):
            continue
        scales = mod.scales.T
        if awq:
            w, w32 = (dequantize_gemm(mod.qweight, mod.qzeros, x, mod.bits, mod.group_size) for x in (mod.scales, mod.scales.float()))
            q, z = reverse_awq_order(*unpack_awq(mod.qweight, mod.qzeros, mod.bits), mod.bits)
            q, z = (x.int() & (1 << mod.bits) - 1 for x in (q, z))
        else:
            plain = super(type(mod), mod).dequantize_weight  # the reader without a cache
            w = plain()
            mod.scales = mod.scales.float()
            w32 = plain()
            mod.scales = torch.ones_like(mod.scales)
            difference, kept = plain(), mod.qweight
            mod.qweight = torch.zeros_like(kept)
            zero = -plain()  # [in,out]: code 0 at scale 1
            mod.qweight = kept
            q = (difference + zero).int()
            first = torch.stack([(mod.g_idx == g).nonzero()[0, 0] for g in range(scales.shape[1])])
            z = zero[first].int().T
        yield name, Read(q.T, z.T if awq else z, scales, w.T, w32.T)


def as_checkpoint(source, weights):
    """The original model with the given weights, float32, as a checkpoint that quire reads."""
    d = os.path.join(work, "theirs")
    shutil.rmtree(d, ignore_errors=True)
    os.mkdir(d)
    save_file({k: weights[k[: -len(".weight")]].contiguous() if k.removesuffix(".weight") in weights else v for k, v in source.items()}, os.path.join(d, "model.safetensors"))
    shutil.copy(os.path.join(model, "config.json"), d)
    return d


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
        wrong, weights = {"codes": 0, "zeros": 0, "scales": 0, "weights": 0}, {}
        decided = decisions(d)
        for m, r in compressed_tensors(d) if ct else gptq_like(d):
            o = decided[m]
            scales, zeros, gidx = o["scales"], o["zeros"].float(), o["gidx"].long()
            w = scales[:, gidx] * (o["codes"].float() - zeros[:, gidx])
            wrong["codes"] += (r.codes != o["codes"]).sum().item()
            wrong["zeros"] += (r.zeros != o["zeros"]).sum().item()
            wrong["scales"] += (r.scales.float() != scales).sum().item()
            wrong["weights"] += (r.w != w.to(r.w.dtype)).sum().item()
            weights[m], kind = r.w32.contiguous(), str(r.w.dtype).removeprefix("torch.")
        report(len(weights) == len(decided) == 112 and not any(wrong.values()),
               f"{name}: {len(weights)} modules, {sum(w.numel() for w in weights.values())} weights by their unpacker, {kind}; unequal: {wrong}")
        mine = ours(d)
        for what, logits in (("our forward", ours(as_checkpoint(source, weights))), ("transformers'", dense(weights))):
            err = ((mine - logits).abs().max() / logits.abs().max()).item()
            report(err < 1e-5, f"{name}: {what} with their dequantized weights: logits differ by {err:.2g}")
    except Exception as e:  # noqa: BLE001: one format must not hide the others
        report(False, f"{name}: {type(e).__name__}: {e}")
sys.exit(bad > 0)
