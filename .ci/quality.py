#!/usr/bin/env python3
"""Calibration draws, peers and the verdict of .ci/quality.

  quality.py draws SHARED WORK N            N draws of 32 ragged sequences, and the evaluation ids
  quality.py gptqmodel MODEL WORK CELL...   quantize cells with GPTQModel (python of an environment that has it)
  quality.py llmcompressor MODEL WORK CELL...
  quality.py verdict WORK                   paired ratios, Markdown

A cell is DRAW:BITS:GROUP. Output folders are WORK/PEER/DRAW-BITS-GROUP; a folder that exists is left alone. The two peer
verbs hold one process for all cells, because importing costs more than a cell.
"""
import json
import math
import os
import random
import shutil
import statistics
import struct
import sys

PEERS = ("gptqmodel", "llmcompressor", "llmcompressor-damp0.05")


def u16(path):
    b = open(path, "rb").read()
    return list(struct.unpack(f"<{len(b) // 2}H", b))


def sequences(ids, longest=256, shortest=32):
    """One sequence a story (token 1 begins one), cut at longest."""
    out, cur = [], []
    for t in ids:
        if t == 1 and cur:
            out.append(cur[:longest])
            cur = []
        cur.append(t)
    out.append(cur[:longest])
    return [s for s in out if len(s) >= shortest]


def draws(shared, work, n):
    valid = u16(os.path.join(shared, "eval/ts_valid512.u16"))
    half = len(valid) // 2
    pool = sequences(valid[:half]) + sequences(u16(os.path.join(shared, "eval/self_generated512.u16")))
    os.makedirs(work, exist_ok=True)
    with open(os.path.join(work, "eval.u16"), "wb") as f:
        f.write(struct.pack(f"<{len(valid) - half}H", *valid[half:]))
    for d in range(n):
        picked = random.Random(d).sample(pool, 32)
        with open(os.path.join(work, f"draw{d}.jsonl"), "w") as f:
            for s in picked:
                f.write(json.dumps({"input_ids": s}, separators=(",", ":")) + "\n")
        lengths = [len(s) for s in picked]
        print(f"draw {d}: {sum(lengths)} tokens, {min(lengths)}..{max(lengths)} a sequence, of {len(pool)} sequences")


def cells(work, peer, args):
    judged = {tuple(line.split()[:2]) for line in open(os.path.join(work, "kl.tsv"))}
    for a in args:
        if (peer, a.replace(":", "-")) in judged:
            continue
        d, bits, group = (int(x) for x in a.split(":"))
        out = os.path.join(work, peer, f"{d}-{bits}-{group}")
        if not os.path.exists(os.path.join(out, "config.json")):
            calib = [json.loads(x) for x in open(os.path.join(work, f"draw{d}.jsonl"))]
            for c in calib:
                c["attention_mask"] = [1] * len(c["input_ids"])
            yield bits, group, calib, out


def tokenizer(vocab_size):
    """The peers insist on a tokenizer; ids come ready, so a word-level one without words will do."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    v = {"<unk>": 0, "<s>": 1, "</s>": 2}
    v.update({f"t{i}": i for i in range(3, vocab_size)})
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(v, unk_token="<unk>")),
                                   unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")


def gptqmodel(model, work, args):
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    model, work = os.path.abspath(model), os.path.abspath(work)
    os.chdir(work)  # it leaves logs where it runs
    import torch
    torch.set_num_threads(1)
    from gptqmodel import GPTQModel
    from gptqmodel.quantization.config import GPTQConfig

    source = os.path.join(work, "gptqmodel-source")
    if not os.path.exists(source):
        shutil.copytree(model, source)
        tokenizer(json.load(open(os.path.join(model, "config.json")))["vocab_size"]).save_pretrained(source)
    # damp_percent 0.05 and mse 0 are its defaults and quire's, so one run is both "defaults" and "set to ours".
    for bits, group, calib, out in cells(work, "gptqmodel", args):
        m = GPTQModel.load(source, GPTQConfig(bits=bits, group_size=group, device="cpu"))
        m.quantize(calib, batch_size=1)
        m.save(out + ".tmp")
        os.rename(out + ".tmp", out)
        print("DONE", out, flush=True)


def llmcompressor(model, work, args):
    import torch
    torch.set_num_threads(1)
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import AutoModelForCausalLM

    for peer, kw in (("llmcompressor", {}), ("llmcompressor-damp0.05", {"dampening_frac": 0.05})):
        for bits, group, calib, out in cells(work, peer, args):
            m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
            recipe = GPTQModifier(ignore=["lm_head", r"re:.*mlp\.gate$"], config_groups={"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}}}, **kw)
            m = oneshot(model=m, recipe=recipe, tokenizer=tokenizer(m.config.vocab_size), dataset=Dataset.from_list(calib),
                        num_calibration_samples=len(calib), max_seq_length=8192, pipeline="sequential",
                        shuffle_calibration_samples=False, moe_calibrate_all_experts=True)
            m.save_pretrained(out + ".tmp", save_compressed=True)
            os.rename(out + ".tmp", out)
            print("DONE", out, flush=True)


def verdict(work):
    kl = {}  # (tool, draw, bits, group)
    for line in open(os.path.join(work, "kl.tsv")):
        tool, cell, v = line.split()
        kl[(tool, *(int(x) for x in cell.split("-")))] = float(v)
    shapes = sorted({k[2:] for k in kl}, key=lambda s: (-s[0], s[1]))
    every, bad = [], []
    print("| bits, group | draws | quire KL | " + " | ".join(f"quire / {p}" for p in PEERS) + " | quire / best (± standard error) |")
    print("|---|---|---|" + "---|" * len(PEERS) + "---|")
    for bits, group in shapes:
        ours = {d: v for (t, d, b, g), v in kl.items() if t == "quire" and (b, g) == (bits, group)}
        per = {p: {d: kl[(p, d, bits, group)] for d in ours if (p, d, bits, group) in kl} for p in PEERS}
        full = [d for d in sorted(ours) if all(d in per[p] for p in PEERS)]
        if not full:
            continue
        geo = lambda xs: math.exp(statistics.fmean(xs))
        logs = [math.log(ours[d] / min(per[p][d] for p in PEERS)) for d in full]
        # "Best peer" of a cell: of the peers' geometric means, not of each draw, is the weaker demand; the stronger is shown.
        every += logs
        se = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else float("nan")
        mean = geo(logs)
        if not mean <= 1 + 2 * (se if se == se else 0):
            bad.append(f"{bits} bits g{group}: {mean:.3f}")
        ratios = " | ".join(f"{geo([math.log(ours[d] / per[p][d]) for d in full]):.3f}" for p in PEERS)
        print(f"| {bits}, {group} | {len(full)} | {geo([math.log(ours[d]) for d in full]):.5f} | {ratios} | **{mean:.3f}** ± {se:.3f} |")
    if not every:
        sys.exit("no complete cell")
    total = math.exp(statistics.fmean(every))
    print(f"\nGeometric mean over all {len(every)} cells, each against the best peer of its own draw: **{total:.3f}**")
    if bad or total > 1:
        print("Does not hold: " + ("; ".join(bad) or "the mean is above 1"))
        sys.exit(1)
    print("Holds: mean at most 1.00, no cell above 1.00 + 2 standard errors.")


if __name__ == "__main__":
    verb, args = sys.argv[1], sys.argv[2:]
    if verb == "draws":
        draws(args[0], args[1], int(args[2]))
    elif verb == "verdict":
        verdict(args[0])
    else:
        {"gptqmodel": gptqmodel, "llmcompressor": llmcompressor}[verb](args[0], args[1], args[2:])
        sys.stdout.flush()
        os._exit(0)  # worker threads of the libraries do not end
