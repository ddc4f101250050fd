"""Training loops: the trunk on packed rows, the drafters on the frozen trunk's own texts."""

import math
import random
import time

import torch
import torch.nn.functional as F

import speculation
import trunk as trunk_module


PLAIN = {name: getattr(trunk_module, name) for name in ("gdn_core", "rms1", "swiglu")}
_compiled = {}


def fuse(on):
    """Switches the functions between the matrix products to their compiled forms, or back.

    A training step is otherwise bound by launches and memory traffic; generation changes shapes too often for it.
    Returns what was in use."""
    if on and not _compiled:
        torch._dynamo.config.recompile_limit = 64
        _compiled.update({name: torch.compile(f, dynamic=False) for name, f in PLAIN.items()})
    functions = _compiled if on else PLAIN
    was = trunk_module.rms1 is not PLAIN["rms1"]
    trunk_module.GatedDeltaNet.core = staticmethod(functions["gdn_core"])
    trunk_module.rms1, trunk_module.swiglu = functions["rms1"], functions["swiglu"]
    return was


def autocast(device):
    return torch.autocast(torch.device(device).type, torch.bfloat16)


class Schedule:
    """Warm-up, then cosine to zero over steps or seconds, whichever runs out first."""

    def __init__(self, model, rate, steps, seconds, decay, warmup=100):
        no_decay = ("embed_tokens", "codebook", "conv1d", "base_kernel")
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        heavy = [p for n, p in named if p.dim() >= 2 and not any(w in n for w in no_decay)]
        light = [p for n, p in named if p.dim() < 2 or any(w in n for w in no_decay)]
        groups = [{"params": heavy, "weight_decay": decay}, {"params": light, "weight_decay": 0.0}]
        self.parameters = heavy + light
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=heavy[0].is_cuda)
        self.rate, self.steps, self.seconds, self.warmup = rate, steps, seconds, min(warmup, steps // 10 + 1)
        self.started, self.step_number = time.time(), 0

    def progress(self):
        return max(self.step_number / self.steps, (time.time() - self.started) / self.seconds)

    def log_every(self):
        return max(1, self.steps // 12)

    def step(self, loss):
        rate = self.rate * min(1.0, (self.step_number + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress())))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.step_number += 1
        if self.step_number == 3:  # the first steps compile
            if loss.is_cuda:
                torch.cuda.synchronize()
            self.started = time.time()
        return rate


def row_loss(trunk, ids, documents, learn):
    """(sum of losses, number of predicted tokens) of packed rows."""
    ids, documents = ids.long(), documents.long()
    logits = trunk.lm_head(trunk(ids, documents)[0])[:, :-1]
    wanted = learn[:, 1:] & (documents[:, 1:] == documents[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (losses * wanted.flatten()).sum(), wanted.sum()


@torch.no_grad()
def validate(trunk, rows, device, batch=32):
    trunk.eval()
    was = fuse(False)
    total, count = 0.0, 0
    for i in range(0, len(rows[0]), batch):
        part = [torch.as_tensor(a[i:i + batch]).to(device) for a in rows]
        part = [F.pad(p, (0, 0, 0, batch - len(p)), value=-1 if j == 1 else 0) for j, p in enumerate(part)]
        with autocast(device):
            loss, n = row_loss(trunk, part[0].int(), *part[1:])
        total, count = total + loss.item(), count + n.item()
    trunk.train()
    fuse(was)
    return total / count


def train_trunk(trunk, epochs, plain_rows, chat_rows, device, log, rate, batch, seconds, decay):
    steps_per_epoch = len(epochs[0][0]) // batch
    schedule = Schedule(trunk, rate, steps_per_epoch * len(epochs), seconds, decay)
    trunk.train()
    tokens = 0
    for number, rows in enumerate(epochs, 1):
        arrays = [torch.as_tensor(rows[0].astype("int32")).to(device)] + [torch.as_tensor(a).to(device) for a in rows[1:]]
        running, steps = torch.zeros((), device=device), 0
        for i in range(0, len(arrays[0]) - batch + 1, batch):
            with autocast(device):
                loss, count = row_loss(trunk, *(a[i:i + batch] for a in arrays))
            loss = loss / count
            lr = schedule.step(loss)
            running, steps, tokens = running + loss.detach(), steps + 1, tokens + batch * arrays[0].shape[1]
            if schedule.progress() >= 1.0:
                break
        train_loss = running.item() / steps
        log(f"trunk epoch {number}: step {schedule.step_number}, {time.time() - schedule.started:.0f} s, {tokens / 1e6:.1f}M tokens, "
            f"rate {lr:.1e}, train {train_loss:.3f}, held-out plain {validate(trunk, plain_rows, device):.4f}, "
            f"chat {validate(trunk, chat_rows, device):.4f}")
        if schedule.progress() >= 1.0:
            break
    trunk.eval()


def self_texts(trunk, tokenizer, stories, found, count, total, device, seed, make_prompts, stops, rows=4096):
    """Texts that the trunk tells for training prompts, half greedy and half at T = 0.8.

    Returns ids [count, total], first generated index, length, and which are greedy."""
    rng = random.Random(seed)
    prompts = [tokenizer.encode(p).ids for p in make_prompts(stories, found, rng, count)]
    prompts = [p[:total // 2] for p in prompts]
    greedy = [i % 2 == 0 for i in range(count)]
    parts = []
    for i in range(0, count, rows):
        part = prompts[i:i + rows]
        temperatures = [0.0 if g else 0.8 for g in greedy[i:i + rows]]
        parts.append(speculation.generate(trunk, part, total, temperatures, [0] * len(part), stops, device, quick_noise=True))
    ids, starts, lengths = (torch.cat(x) for x in zip(*parts))
    return ids, starts, lengths, torch.tensor(greedy, device=device)


def soft_loss(logits, target_logits, tokens, hard, weight):
    """Cross-entropy against hard * one-hot(token) + (1 - hard) * the trunk's distribution; weight masks and scales.

    logits and target_logits [N, vocab], tokens, hard and weight [N]."""
    logq = F.log_softmax(logits.float(), -1)
    soft = -(F.softmax(target_logits.float(), -1) * logq).sum(-1)
    loss = hard * -logq.gather(-1, tokens[:, None])[:, 0] + (1 - hard) * soft
    return (loss * weight).sum() / weight.sum().clamp_min(1e-6)


def batches(texts, batch, generator):
    """Endless batches in a fresh order each pass."""
    ids, starts, lengths, greedy = texts
    while True:
        order = torch.randperm(len(ids), generator=generator).to(ids.device)
        for i in range(0, len(order) - batch + 1, batch):
            pick = order[i:i + batch]
            yield ids[pick], starts[pick], lengths[pick], greedy[pick]


def train_mtp(trunk, mtp, texts, device, log, rate, batch, steps, seconds, ahead=3):
    schedule = Schedule(mtp, rate, steps, seconds, decay=0.05)
    source = batches(texts, batch, torch.Generator().manual_seed(1))
    mtp.train()
    while schedule.progress() < 1.0:
        ids, starts, lengths, greedy = next(source)
        rows = ids.shape[1] - ahead - 1
        with autocast(device):
            with torch.no_grad():
                hidden = trunk(ids)[0]
                target = trunk.lm_head(hidden)
                embeddings = trunk.model.embed_tokens(ids)
            loss, losses = 0.0, []
            for s, m in enumerate(mtp(hidden[:, :rows], embeddings, ahead), 1):
                at = torch.arange(rows, device=ids.device) + 1 + s
                weight = ((at >= starts[:, None]) & (at < lengths[:, None])).float().flatten()
                hard = torch.where(greedy, 0.6, 0.2)[:, None].expand(-1, rows).flatten()
                part = soft_loss(trunk.lm_head(m).flatten(0, 1), target[:, s:s + rows].flatten(0, 1),
                                 ids[:, 1 + s:1 + s + rows].flatten(), hard, weight)
                losses.append(part.detach())
                loss = loss + part * (1.0, 0.7, 0.5)[s - 1]
        schedule.step(loss)
        if schedule.step_number % schedule.log_every() == 0:
            log(f"mtp step {schedule.step_number}, {time.time() - schedule.started:.0f} s, losses "
                + " ".join(f"{x.item():.3f}" for x in losses))
    mtp.eval()


def train_dflash(trunk, drafter, texts, device, log, rate, batch, steps, seconds, anchors=48):
    c = drafter.c
    schedule = Schedule(drafter, rate, steps, seconds, decay=0.05)
    source = batches(texts, batch, torch.Generator().manual_seed(c.version))
    fade = torch.exp(-torch.arange(c.block_size - 1, device=device) / 4.0)
    drafter.train()
    while schedule.progress() < 1.0:
        ids, starts, lengths, greedy = next(source)
        span = (lengths - 1 - starts).clamp_min(1)
        at = starts[:, None] + (torch.rand(len(ids), anchors, device=device) * span[:, None]).long()
        places = at[..., None] + torch.arange(1, c.block_size, device=device)
        weight = (places < lengths[:, None, None]) * fade
        inside = places.clamp_max(ids.shape[1] - 1).flatten(1)
        tokens = ids.gather(1, inside)
        with autocast(device):
            with torch.no_grad():
                final, taps = trunk(ids, taps=c.target_layer_ids)
                before = (inside - 1)[..., None].expand(-1, -1, final.shape[-1])
                target = trunk.lm_head(final.gather(1, before)).flatten(0, 1)
            hidden = drafter(torch.cat(taps, -1), ids.gather(1, at), at, trunk.model.embed_tokens)[:, :, 1:]
            logits = trunk.lm_head(hidden).flatten(0, 2)
            hard = torch.where(greedy, 0.7, 0.5)[:, None].expand(tokens.shape).flatten()
            loss = unary = soft_loss(logits, target, tokens.flatten(), hard, weight.flatten())
            if c.version == 2:
                previous = ids.gather(1, inside - 1).view(places.shape)
                edges = drafter.candidate_selector.edges(hidden, previous).flatten(0, 2)
                walked = soft_loss(logits + edges, target, tokens.flatten(), hard, weight.flatten())
                loss = walked + 0.3 * unary
        schedule.step(loss)
        if schedule.step_number % schedule.log_every() == 0:
            log(f"dflash{c.version} step {schedule.step_number}, {time.time() - schedule.started:.0f} s, unary "
                f"{unary.item():.3f}" + (f", with edges {walked.item():.3f}" if c.version == 2 else ""))
    drafter.eval()
