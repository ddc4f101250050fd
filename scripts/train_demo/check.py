"""Checks the modules of this folder against independent computations; run it before a training run.

  check.py hf                     the trunk against transformers' Qwen3_5ForCausalLM (logits, one-step form, packing)
  check.py drafters VECTORS_DIR   the drafters against recorded outputs of the drafter authors' code, given as folders
                                  with config.json, model.safetensors (the drafter) and vectors.safetensors (two rounds)
  check.py mtp                    the parallel MTP form against a loop that keeps a cache and drafts one token at a time
  check.py rounds MODEL_DIR       the acceptance count against rounds really played, from the committed text alone
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

import exporting
import speculation
from drafters import DFlash, DFlashConfig, Mtp
from trunk import Trunk, TrunkConfig, rope_tables


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


def mtp_row(mtp, hidden, embedding, position, cache):
    """One MTP row by section 7.2 of the format's description: appends to cache = [keys, values], returns its output [H]."""
    layer, c = mtp.layers[0], mtp.c
    x = mtp.fc(torch.cat([mtp.pre_fc_norm_embedding(embedding), mtp.pre_fc_norm_hidden(hidden)]))[None, None]
    cos, sin = rope_tables(torch.tensor([[position]]), c.rotary_dim, c.rope_theta)
    q, gate, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
    cache[0].append(k[0, 0, 0])
    cache[1].append(v[0, 0, 0])
    weights = torch.softmax(q[0, :, 0] @ torch.stack(cache[0]).T * c.head_dim ** -0.5, -1)
    x = x + layer.self_attn.finish((weights @ torch.stack(cache[1]))[None, :, None], gate)
    x = x + layer.mlp(layer.post_attention_layernorm(x))
    return mtp.norm(x)[0, 0]


@torch.no_grad()
def check_mtp():
    torch.manual_seed(1)
    mtp = Mtp(TrunkConfig()).eval()
    for p in mtp.parameters():
        p.add_(torch.randn_like(p) * 0.05)
    t, steps = 9, 3
    hidden, embeddings = torch.randn(1, t, 256), torch.randn(1, t + steps, 256)
    outputs = mtp(hidden, embeddings, steps)
    for p in (0, 4, t - 1):
        cache = [[], []]
        for row in range(p + 1):
            m = mtp_row(mtp, hidden[0, row], embeddings[0, row + 1], row, cache)
        for s in range(1, steps + 1):
            worst(f"mtp row {p} step {s}", outputs[s - 1][0, p], m, 1e-4)
            if s < steps:
                m = mtp_row(mtp, m, embeddings[0, p + s + 1], p + s, cache)


@torch.no_grad()
def play(trunk, drafter, prompt, total, temperature, seed, stops, k):
    """(rounds, text): speculation as an engine does it, every round computed anew from the committed ids."""
    def trunk_on(ids, taps=()):
        hidden, tapped = trunk(speculation.pad_to_chunks(torch.tensor([ids])), taps=taps)
        return hidden[:, :len(ids)], [t[:, :len(ids)] for t in tapped]

    def drawn(logits, index):
        noise = speculation.gumbel(torch.tensor(seed), torch.tensor(index), trunk.c.vocab_size) if temperature else None
        return int(speculation.draw(logits, noise, temperature))

    text = prompt + [drawn(trunk.lm_head(trunk_on(prompt)[0][0, -1]), 0)]
    rounds = 0
    while len(text) < total and text[-1] not in stops:
        drafts, at = [], len(text) - len(prompt)
        if isinstance(drafter, Mtp):
            hidden, cache = trunk_on(text[:-1])[0][0], [[], []]
            for row in range(len(text) - 1):
                m = mtp_row(drafter, hidden[row], trunk.model.embed_tokens.weight[text[row + 1]], row, cache)
            for i in range(k):
                drafts.append(drawn(trunk.lm_head(m), at + i))
                m = mtp_row(drafter, m, trunk.model.embed_tokens.weight[drafts[-1]], len(text) - 1 + i, cache)
        else:
            features = torch.cat(trunk_on(text[:-1], drafter.c.target_layer_ids)[1], -1)
            anchor = torch.tensor([[text[-1]]])
            hidden = drafter(features, anchor, torch.tensor([[len(text) - 1]]), trunk.model.embed_tokens)[0, 0]
            previous = text[-1]
            for i in range(1, k + 1):
                scores = trunk.lm_head(hidden[i])
                if drafter.c.version == 2:
                    scores = drafter.candidate_scores(scores, hidden[i], torch.tensor(previous))
                previous = drawn(scores, at + i - 1)
                drafts.append(previous)
        logits = trunk.lm_head(trunk_on(text + drafts)[0][0, len(text) - 1:])
        rounds += 1
        for i, row in enumerate(logits):
            text.append(drawn(row, at + i))
            if len(text) == total or text[-1] in stops or i < k and drafts[i] != text[-1]:
                break
    return rounds, text


def check_rounds(folder):
    trunk, mtp, drafters = exporting.load_folder(folder)
    prompts = [p["ids"] for p in json.loads((pathlib.Path(folder) / "acceptance.json").read_text())["prompts"][:2]]
    stops, total = (4077, 4079), 112
    every = {"mtp k=3": (mtp, 3), "dflash 7": drafters["dflash"], "dflash2 7": drafters["dflash2"]}
    for temperature in (0.0, 0.8):
        counted, (ids, _, lengths) = speculation.acceptance(trunk, every, prompts, total, temperature, 1000, stops, "cpu")
        for name, drafter in every.items():
            module, k = drafter if isinstance(drafter, tuple) else (drafter, drafter.c.block_size - 1)
            played = [play(trunk, module, p, total, temperature, 1000 + i, stops, k) for i, p in enumerate(prompts)]
            for (_, text), row, length in zip(played, ids.tolist(), lengths.tolist()):
                if text != row[:length]:
                    raise SystemExit(f"{name} T={temperature}: the text depends on the drafter")
            rounds = sum(r for r, _ in played)
            print(f"{name} T={temperature}: {rounds} rounds played, {counted[name]['rounds']} counted")
            if rounds != counted[name]["rounds"]:
                raise SystemExit("rounds differ")


if __name__ == "__main__":
    if sys.argv[1:] == ["hf"]:
        check_hf()
    elif sys.argv[1:] == ["mtp"]:
        check_mtp()
    elif sys.argv[1:2] == ["drafters"] and len(sys.argv) == 3:
        check_drafters(sys.argv[2])
    elif sys.argv[1:2] == ["rounds"] and len(sys.argv) == 3:
        check_rounds(sys.argv[2])
    else:
        raise SystemExit(__doc__)
