"""Checks the modules of this folder against independent computations; run it before a training run.

  check.py hf                     the trunk against transformers' Qwen3_5ForCausalLM (logits, one-step form, packing)
  check.py drafters VECTORS_DIR   the drafters against recorded outputs of the drafter authors' code, given as folders
                                  with config.json, model.safetensors (the drafter) and vectors.safetensors (two rounds)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

from drafters import DFlash, DFlashConfig
from trunk import Trunk, TrunkConfig


def worst(name, a, b, limit):
    difference = (a - b).abs().max().item()
    print(f"{name:44} {difference:.2e}")
    if not difference <= limit:
        raise SystemExit(f"{name}: off by {difference:.2e}, allowed {limit:.0e}")


def hf_config(c):
    from transformers import Qwen3_5TextConfig
    return Qwen3_5TextConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers, num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads, head_dim=c.head_dim, max_position_embeddings=4096,
        linear_num_key_heads=c.linear_num_key_heads, linear_num_value_heads=c.linear_num_value_heads,
        linear_key_head_dim=c.linear_head_dim, linear_value_head_dim=c.linear_head_dim,
        layer_types=c.layer_types(), tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 0.25,
                         "mrope_section": [11, 11, 10], "mrope_interleaved": True})


def check_hf():
    from transformers import Qwen3_5ForCausalLM
    torch.manual_seed(1)
    c = TrunkConfig(num_hidden_layers=4)
    trunk = Trunk(c).eval()
    with torch.no_grad():
        for name, p in trunk.named_parameters():
            p.add_(torch.randn_like(p) * (0.05 if p.dim() > 1 else 0.2))
    hf = Qwen3_5ForCausalLM(hf_config(c)).eval()
    hf.load_state_dict(trunk.state_dict())
    ids = torch.randint(0, c.vocab_size, (2, 192))
    with torch.no_grad():
        logits = trunk.lm_head(trunk(ids)[0])
        worst("trunk, chunked form, against transformers", logits, hf(ids).logits, 2e-3)
        caches = trunk.new_cache(2, 192, "cpu")
        steps = torch.stack([trunk.step(ids[:, i], i, caches) for i in range(192)], 1)
        worst("trunk, one-step form, against chunked form", steps, logits, 2e-3)
        packed = torch.cat([ids[:1, :100], ids[1:, :92]], 1)
        documents = torch.tensor([[0] * 100 + [1] * 92])
        both = trunk.lm_head(trunk(packed, documents)[0])
        worst("packed rows, first document", both[:, :100], logits[:1, :100], 2e-3)
        worst("packed rows, second document", both[:, 100:], logits[1:, :92], 2e-3)
        values = list(hf.model(ids, output_hidden_states=True).hidden_states)
        worst("tap 2 = hidden_states[3]", trunk(ids, taps=(2,))[1][0], values[3], 2e-3)


def check_drafters(folder):
    for case in sorted(p for p in pathlib.Path(folder).iterdir() if p.is_dir()):
        c = DFlashConfig.from_file(json.loads((case / "config.json").read_text()))
        drafter = DFlash(c).eval()
        drafter.load_state_dict({k: v.float() for k, v in load_file(case / "model.safetensors").items()})
        v = load_file(case / "vectors.safetensors")

        def embed(ids):
            return v["trunk.embed_tokens"][ids]

        for r in ("round1", "round2"):
            anchor = v[f"{r}.anchor_id"].long()[None]
            start = v[f"{r}.block_positions"][:1].long()[None]
            with torch.no_grad():
                hidden = drafter(v["trunk.features"][None], anchor, start, embed)[0, 0]
                logits = hidden[1:] @ v["trunk.lm_head"].T
                worst(f"{case.name} {r} hidden", hidden, v[f"{r}.hidden"], 5e-5)
                worst(f"{case.name} {r} logits", logits, v[f"{r}.logits"], 5e-5)
                scores, previous = logits, anchor[0]
                if c.version == 2:
                    drafts = []
                    for i in range(c.block_size - 1):
                        row = drafter.candidate_scores(logits[i], hidden[i + 1], previous[0])
                        candidates = v[f"{r}.cand_ids"][i].long()
                        worst(f"{case.name} {r} scores {i}", row[candidates], v[f"{r}.walk_scores"][i], 5e-5)
                        previous = row.argmax()[None]
                        drafts.append(previous)
                    drafts = torch.cat(drafts)
                else:
                    drafts = scores.argmax(-1)
            worst(f"{case.name} {r} drafts", drafts, v[f"{r}.draft_ids"].long(), 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hf"]:
        check_hf()
    elif sys.argv[1:2] == ["drafters"] and len(sys.argv) == 3:
        check_drafters(sys.argv[2])
    else:
        raise SystemExit(__doc__)
