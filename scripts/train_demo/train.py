#!/usr/bin/env python3
"""Trains the bundled model: trunk, MTP head, DFlash and DFlash2 drafters. One GPU, a few minutes; README.md has the command.

Each stage is saved under --out as soon as it is finished, so that whatever ends the run early leaves a usable folder.
"""

import argparse
import json
import pathlib
import random
import time

import torch

import chats
import data
import exporting
import facts
import speculation
import tokenizing
import training
from drafters import DFlash, DFlashConfig, Mtp
from trunk import Trunk, TrunkConfig


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--corpus", required=True, help="story text, stories separated by <|endoftext|>; .xz or plain")
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--workers", type=int, default=16)
    p.add_argument("--epochs", type=int, default=9)
    p.add_argument("--batch", type=int, default=96, help="rows of 512 tokens a step")
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--decay", type=float, default=0.3)
    p.add_argument("--dropout", type=float, default=0.2)
    p.add_argument("--trunk-seconds", type=float, default=205)
    p.add_argument("--drafter-seconds", type=float, nargs=3, default=[50, 60, 70], help="MTP, DFlash, DFlash2")
    p.add_argument("--drafter-steps", type=int, default=2000)
    p.add_argument("--drafter-rate", type=float, default=2e-3)
    p.add_argument("--texts", type=int, default=12288, help="texts told by the trunk that the drafters learn from")
    p.add_argument("--total", type=int, default=384, help="tokens of such a text, prompt included; a multiple of 64")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--trunk-only", action="store_true")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--layers", type=int, default=12, help="for a trial run")
    p.add_argument("--hidden", type=int, default=256, help="for a trial run")
    p.add_argument("--stories", type=int, default=0, help="for a trial run: use only so many training stories, and a quarter as many held-out ones")
    p.add_argument("--check-prompts", type=int, nargs=2, default=[80, 48], help="held-out chat and plain prompts")
    return p.parse_args()


class Log:
    def __init__(self, path):
        self.file, self.started = open(path, "w", encoding="utf-8"), time.time()

    def __call__(self, text):
        line = f"[{time.time() - self.started:6.1f}] {text}"
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def drafter_prompts(stories, found, rng, count):
    """Three chats to one plain opening, from training stories."""
    out = []
    for _ in range(count):
        i = rng.randrange(len(stories))
        text, facts_of = facts.rename(stories[i], found[i], rng) if rng.random() < 0.5 else (stories[i], found[i])
        out.append(" ".join(text.split()[:rng.randint(2, 12)]) if rng.random() < 0.3
                   else chats.story_chat(text, facts_of, rng)[0])
    return out


def answer_check(tokenizer, prompts, told, log):
    """How many of the words a prompt asks for its story uses."""
    ids, starts, lengths = (x.tolist() for x in told)
    asked = used = finished = 0
    for (_, _, wanted), row, start, length in zip(prompts, ids, starts, lengths):
        answer = tokenizer.decode(row[start:length]).lower()
        asked += len(wanted)
        used += sum(w.lower() in answer for w in wanted)
        finished += length < len(row)
    log(f"answers: {used} of {asked} asked-for words used ({100 * used / max(1, asked):.1f} %), {finished} of {len(ids)} ended")


def describe(result):
    rates = [a / max(1, d) for a, d in zip(result["accepted"], result["drafted"])]
    return (f"{result['tokens'] / result['rounds']:.3f} tokens a round over {result['rounds']} rounds, first draft at every one of "
            f"{result['positions']} positions {100 * result['first_hits'] / result['positions']:.1f} %, accepted by position "
            + " ".join(f"{100 * r:.1f}" for r in rates))


def measure(trunk, drafters, tokenizer, prompts, stops, args, log):
    """Acceptance on held-out prompts in fp32: rates for the log, counts for acceptance.json."""
    torch.backends.cuda.matmul.allow_tf32 = False
    encoded = [tokenizer.encode(text).ids for _, text, _ in prompts]
    record = {"prompts": [{"name": n, "ids": e} for (n, _, _), e in zip(prompts, encoded)], "first_seed": 1000,
              "total_tokens": args.total, "results": {}}
    for temperature in (0.0, 0.8):
        results, told = speculation.acceptance(trunk, drafters, encoded, args.total, temperature, 1000, stops, args.device)
        record["results"][f"T={temperature}"] = results
        answer_check(tokenizer, prompts, told, log)
        for name, result in results.items():
            log(f"T={temperature} {name}: {describe(result)}")
        ids, starts, lengths = (x.tolist() for x in told)
        for i in sorted({*range(min(8, len(prompts))), len(prompts) - 2, len(prompts) - 1}):
            log(f"sample T={temperature} {prompts[i][0]}: {prompts[i][1]!r} -> "
                f"{tokenizer.decode(ids[i][starts[i]:lengths[i]])!r}")
    torch.backends.cuda.matmul.allow_tf32 = True
    return record


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "train.log")
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    log(f"torch {torch.__version__}, device {args.device}, {vars(args)}")

    stories, held_out = data.read_corpus(args.corpus)
    tokenizer = tokenizing.train(stories)
    if args.stories:
        stories, held_out = stories[:args.stories], held_out[:args.stories // 4]
    finder = facts.FactFinder(stories)
    found, held_found = [finder.find(s) for s in stories], [finder.find(s) for s in held_out]
    plain_rows = data.pack(data.encode_documents(tokenizer, [("", s + data.SEPARATOR) for s in held_out]), random.Random(0))
    chat_rows = data.pack(data.encode_documents(
        tokenizer, data.chat_documents(held_out, held_found, random.Random(0), 0.0)), random.Random(0))
    epochs = list(data.epochs(tokenizer, stories, found, args.epochs, args.workers))
    log(f"{len(stories)} training and {len(held_out)} held-out stories; an epoch has {len(epochs[0][0])} rows of {data.ROW} tokens, "
        f"{(epochs[0][1] >= 0).mean():.3f} filled, {epochs[0][2].sum()} predicted tokens")

    c = TrunkConfig(dropout=args.dropout, num_hidden_layers=args.layers, hidden_size=args.hidden)
    trunk = Trunk(c).to(args.device)
    log(f"trunk: {sum(p.numel() for p in trunk.parameters())} parameters")
    training.fuse(not args.no_compile)
    training.train_trunk(trunk, epochs, plain_rows, chat_rows, args.device, log, args.rate, args.batch, args.trunk_seconds,
                         args.decay)
    exporting.round_to_bf16(trunk)
    log(f"trunk rounded to bf16: held-out plain {training.validate(trunk, plain_rows, args.device):.4f}, "
        f"chat {training.validate(trunk, chat_rows, args.device):.4f}")
    trunk.eval().requires_grad_(False)
    training.fuse(False)
    exporting.save_trunk(trunk, None, tokenizer, args.out)
    if args.trunk_only:
        return

    stops = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    texts = training.self_texts(trunk, tokenizer, stories, found, args.texts, args.total, args.device, args.seed,
                                drafter_prompts, stops)
    log(f"{args.texts} texts told, {(texts[2] - texts[1]).sum().item()} tokens")
    training.fuse(not args.no_compile)
    shared = {"rate": args.drafter_rate, "batch": min(64, args.texts // 2), "steps": args.drafter_steps}
    mtp = Mtp(TrunkConfig(num_hidden_layers=args.layers, hidden_size=args.hidden)).to(args.device)
    mtp.layers[0].load_state_dict(trunk.model.layers[-1].state_dict())  # a full-attention layer, a good start
    mtp.norm.load_state_dict(trunk.model.norm.state_dict())
    training.train_mtp(trunk, mtp, texts, args.device, log, seconds=args.drafter_seconds[0], **shared)
    exporting.round_to_bf16(mtp)
    exporting.save_trunk(trunk, mtp, tokenizer, args.out)
    taps = (2, 6, 10) if args.layers == 12 else tuple(range(3))
    flash = DFlash(DFlashConfig(hidden_size=args.hidden, target_layer_ids=taps, num_target_layers=args.layers)).to(args.device)
    flash2 = DFlash(DFlashConfig(version=2, hidden_size=args.hidden, is_causal=False, target_layer_ids=taps,
                                 num_target_layers=args.layers, layer_types=("sliding_attention",) * 2)).to(args.device)
    for drafter, seconds in ((flash, args.drafter_seconds[1]), (flash2, args.drafter_seconds[2])):
        with torch.no_grad():
            drafter.norm.weight.copy_(1 + trunk.model.norm.weight)  # what the shared head expects
        training.train_dflash(trunk, drafter, texts, args.device, log, seconds=seconds, **shared)
        exporting.round_to_bf16(drafter)
        exporting.save_drafter(drafter, args.out / ("dflash2" if drafter.c.version == 2 else "dflash"))
    training.fuse(False)

    prompts = data.prompts(held_out, held_found, 7, *args.check_prompts)
    drafters = {"mtp k=1": (mtp, 1), "mtp k=2": (mtp, 2), "mtp k=3": (mtp, 3), "dflash 7": flash, "dflash2 7": flash2}
    record = measure(trunk, drafters, tokenizer, prompts, stops, args, log)
    (args.out / "acceptance.json").write_text(json.dumps(record) + "\n")
    log("done")


if __name__ == "__main__":
    main()
