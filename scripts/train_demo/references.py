#!/usr/bin/env python3
"""Reference outputs of an exported folder for the engine's tests: references.py MODEL_DIR (a CPU is enough, some minutes).

Writes into MODEL_DIR
  reference.json              ten prompts through transformers in fp32: ids, greedy ids (stop id included; transformers' best id at
                              every position of the whole text), best logits of the prompt's last position, smallest gap
                              between the best two logits of a greedy choice
  long-reference.json         prompts of 1 to 300 tokens through trunk.py's one-step form in fp64, not stopping at stop ids
  mtp-reference.safetensors   the MTP head for a fixed text in fp32
  drafter-reference.safetensors   DFlash and DFlash2 blocks in the same text in fp32
and fails if transformers does not read the folder, or disagrees with trunk.py.

mtp-reference: ids i32 [T]; hidden f32 [T, H] of the trunk after its final norm; rows i32 [R]; for s = 1..3 output.s f32 [R, H]
after mtp.norm and logits.s f32 [R, vocab] of row p, which predict token p+1+s. Step s reads token p+s of the text and, from
s = 2, step s-1's output, at position p+s-1; the cache then holds step 1's rows 0..p and the row's own earlier steps.
drafter-reference, prefix dflash. or dflash2.: features f32 [T, taps * H]; anchors i32 [A] (positions; the block's first token is
ids[anchor], the context is rows before it); hidden f32 [A, 8, H] after the final norm; logits f32 [A, 7, vocab]; drafts i32 [A, 7];
DFlash2 also candidates i32 [A, 7, 16], best logit first, and walk_scores f32 [A, 7, 16] along the greedy walk.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

import exporting
import speculation

STOPS = (4077, 4079)
PLAIN = ["Once upon a time", "The little bird was sad because", "Tom and Lily", "One day, a big red ball rolled down the hill and",
         "Sara's dog didn't want to eat 3 carrots."]
CHATS = [
    ([{"role": "user", "content": "Tell me a story about a dragon."}], False, 256),
    ([{"role": "user", "content": "Write a short story about a girl named Nora and a kite. It has a happy ending."}], False, 256),
    ([{"role": "system", "content": "You are a friendly storyteller."},
      {"role": "user", "content": "Please tell me a story about a dog named Rex with a boat."}], False, 64),
    ([{"role": "user", "content": "Make up a story about Omar, with a drum in it."}], True, 64),
    ([{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello! I tell stories for children."},
      {"role": "user", "content": "Tell me a story with a frog and a hat."}], False, 64)]


def top8(logits):
    best = logits.topk(8)
    return [[int(i), round(float(v), 6)] for i, v in zip(best.indices, best.values)]


@torch.no_grad()
def transformers_references(folder, trunk):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [(t, 64) for t in PLAIN] + [
        (tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True, enable_thinking=thinking), n)
        for m, thinking, n in CHATS]
    cases = []
    for text, count in prompts:
        ids = tokenizer(text)["input_ids"]
        told, _, lengths = speculation.generate(trunk, [ids], len(ids) + count, [0.0], [0], STOPS, "cpu")
        greedy = told[0, len(ids):int(lengths[0])].tolist()
        full = torch.tensor([ids + greedy])
        logits = model(full).logits[0, len(ids) - 1:-1]
        padded = torch.nn.functional.pad(full, (0, -full.shape[1] % 64))
        own = trunk.lm_head(trunk(padded)[0])[0, len(ids) - 1:full.shape[1] - 1]
        difference = (own - logits).abs().max().item()
        if logits.argmax(-1).tolist() != greedy or difference > 2e-3:
            raise SystemExit(f"{text!r}: transformers and trunk.py disagree (logits by {difference:.1e})")
        best = logits.topk(2).values
        cases.append({"prompt": text, "prompt_ids": ids, "max_new_tokens": count, "fp32_greedy_ids": greedy,
                      "last_logits_top8": top8(logits[0]), "smallest_margin": round(float((best[:, 0] - best[:, 1]).min()), 4)})
        print(f"{text!r} -> {tokenizer.decode(greedy)!r}; logits differ by {difference:.1e}, margin {cases[-1]['smallest_margin']}")
    return cases, tokenizer


@torch.no_grad()
def long_references(trunk, text):
    """fp64 by widening every step that the module does in fp32."""
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    trunk.double()
    try:
        cases = []
        for count in (1, 2, 63, 64, 65, 128, 300):
            ids, caches, greedy, margin = list(text[:count]), trunk.new_cache(1, count + 32, "cpu"), [], 1e9
            for position in range(count + 31):
                logits = trunk.step(torch.tensor([(ids + greedy)[position]]), position, caches)[0]
                if position == count - 1:
                    first = top8(logits)
                if position >= count - 1:
                    best = logits.topk(2)
                    margin = min(margin, float(best.values[0] - best.values[1]))
                    greedy.append(int(best.indices[0]))
            cases.append({"prompt_ids": ids, "fp64_greedy_ids": greedy, "last_logits_top8": first,
                          "smallest_margin": round(margin, 4)})
        return {"made_by": "one-step fp64 forward of scripts/train_demo/trunk.py; greedy without stopping at a stop id",
                "cases": cases}
    finally:
        torch.Tensor.float = narrow
        torch.set_default_dtype(torch.float32)
        trunk.float()


@torch.no_grad()
def drafter_references(trunk, mtp, drafters, ids, folder):
    rows, anchors = torch.tensor([0, 20, 63, 64, 80]), torch.tensor([1, 40, 64, 88])
    text = torch.tensor([ids])
    padded = torch.nn.functional.pad(text, (0, -len(ids) % 64))
    hidden = trunk(padded)[0][:, :len(ids)]
    out = {"ids": text[0].int(), "hidden": hidden[0], "rows": rows.int()}
    outputs = mtp(hidden[:, :-4], trunk.model.embed_tokens(text), 3)
    for s, m in enumerate(outputs, 1):
        out[f"output.{s}"], out[f"logits.{s}"] = m[0, rows], trunk.lm_head(m[0, rows])
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "mtp-reference.safetensors")
    out = {"ids": text[0].int()}
    for name, drafter in drafters.items():
        features = torch.cat(trunk(padded, taps=drafter.c.target_layer_ids)[1], -1)[:, :len(ids)]
        block = drafter(features, text[:, anchors], anchors[None], trunk.model.embed_tokens)[0]
        logits = trunk.lm_head(block[:, 1:])
        out.update({f"{name}.features": features[0], f"{name}.anchors": anchors.int(), f"{name}.hidden": block,
                    f"{name}.logits": logits, f"{name}.drafts": logits.argmax(-1).int()})
        if drafter.c.version == 2:
            candidates, previous, walked, drafts = logits.topk(drafter.c.selector_top_k, -1).indices, text[0, anchors], [], []
            for i in range(logits.shape[1]):
                scores = drafter.candidate_scores(logits[:, i], block[:, i + 1], previous)
                walked.append(scores.gather(-1, candidates[:, i]))
                previous = scores.argmax(-1)
                drafts.append(previous)
            out.update({f"{name}.candidates": candidates.int(), f"{name}.walk_scores": torch.stack(walked, 1),
                        f"{name}.drafts": torch.stack(drafts, 1).int()})
        print(name, "drafts", out[f"{name}.drafts"].tolist())
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "drafter-reference.safetensors")


def main():
    folder = pathlib.Path(sys.argv[1])
    trunk, mtp, drafters = exporting.load_folder(folder)
    cases, _ = transformers_references(folder, trunk)
    exporting.write_json(folder / "reference.json", cases)
    told = next(c["prompt_ids"] + c["fp32_greedy_ids"] for c in cases if c["prompt"].startswith("<|im_start|>") and
                len(c["fp32_greedy_ids"]) > 100)
    drafter_references(trunk, mtp, drafters, told[:96], folder)
    told = [c["prompt_ids"] + c["fp32_greedy_ids"] for c in cases]
    texts = [sum(told[i:] + told[:i], [])[:300] for i in range(len(told))]
    found = [long_references(trunk, text) for text in texts]
    clearest = max(found, key=lambda f: min(c["smallest_margin"] for c in f["cases"]))  # tests want no near ties
    print("margins", [c["smallest_margin"] for c in clearest["cases"]])
    (folder / "long-reference.json").write_text(json.dumps(clearest) + "\n")


if __name__ == "__main__":
    main()
