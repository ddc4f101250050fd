"""Generation with shared Gumbel noise, and what drafters would have been accepted for.

A draw is argmax over ids of logit / T + gumbel (T = 0: argmax of the logits, the lowest id among equals). The noise of
token n (0 = the first generated token) and id v is gumbel(philox(seed, n, v)); a drafter adds the noise of the
position it drafts for, and a draft is accepted when it equals the trunk's draw. So the text does not depend on the drafter, and
the drafts of any round follow from a teacher-forced pass over the finished text.
"""

import torch

MASK32 = 0xFFFFFFFF


def philox(seed, index, ids):
    """First word of Philox4x32-10 with counter (index, id, 0, 0) and key (seed low, seed high), as int64 in [0, 2^32)."""
    c0, c1 = torch.broadcast_tensors(index, ids)
    c0, c1, c2, c3 = c0.clone(), c1.clone(), torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & MASK32, seed >> 32 & MASK32
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & MASK32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32 & MASK32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = k0 + 0x9E3779B9 & MASK32, k1 + 0xBB67AE85 & MASK32
    return c0


def gumbel(seed, index, vocab):
    """Noise [..., vocab] for tokens `index` [...] and seeds [...]: -log(-log((x + 0.5) / 2^32)), computed in fp64."""
    ids = torch.arange(vocab, device=index.device)
    x = philox(seed[..., None], index[..., None], ids)
    return (-torch.log(-torch.log((x.double() + 0.5) / 2.0 ** 32))).float()


@torch.no_grad()
def generate(trunk, prompts, total, temperatures, seeds, stops, device, quick_noise=False):
    """Continues id lists to at most `total` tokens each. Returns ids [N, total], prompt lengths and lengths [N].

    A stop id is kept as the last token. quick_noise: torch's generator instead of Philox (training data only)."""
    n, vocab = len(prompts), trunk.c.vocab_size
    starts = torch.tensor([len(p) for p in prompts], device=device)
    ids = torch.zeros(n, total, dtype=torch.long, device=device)
    for i, p in enumerate(prompts):
        ids[i, :len(p)] = torch.tensor(p, device=device)
    temperature = torch.tensor(temperatures, device=device, dtype=torch.float32)[:, None]
    seeds = torch.tensor(seeds, device=device)
    sampled = bool((temperature > 0).any())
    lengths = torch.full((n,), total, device=device)
    stopped = torch.zeros(n, dtype=torch.bool, device=device)
    caches = trunk.new_cache(n, total, device)
    for t in range(total - 1):
        logits = trunk.step(ids[:, t], t, caches).float()
        if sampled:
            if quick_noise:
                noise = -torch.log(torch.empty_like(logits).exponential_().clamp_min(1e-20))
            else:
                noise = gumbel(seeds, (t + 1 - starts).clamp_min(0), vocab)
            logits = torch.where(temperature > 0, logits / temperature.clamp_min(1e-6) + noise, logits)
        drawn = logits.argmax(-1)
        free = (t + 1 >= starts) & ~stopped
        ids[:, t + 1] = torch.where(free, drawn, ids[:, t + 1])
        ends = free & sum(drawn == s for s in stops).bool()
        lengths = torch.where(ends, torch.full_like(lengths, t + 2), lengths)
        stopped |= ends
        if t % 32 == 0 and bool(stopped.all()):
            break
    return ids, starts, lengths


def pad_to_chunks(ids, extra=0):
    """Right-pads [B, T] with zeros so that T + extra is covered by a multiple of 64."""
    return torch.nn.functional.pad(ids, (0, extra + -(ids.shape[1] + extra) % 64))


def draw(logits, noise, temperature):
    return (logits / temperature + noise if temperature > 0 else logits).argmax(-1)


@torch.no_grad()
def mtp_hits(trunk, mtp, ids, temperature, noise, steps):
    """[B, T, steps] bool: drafted after token p + 1, step s equals token p + 1 + s, given that the earlier steps did."""
    rows = ids.shape[1]
    padded = pad_to_chunks(ids, steps + 1)
    hidden = trunk(padded)[0][:, :rows]
    outputs = mtp(hidden, trunk.model.embed_tokens(padded), steps)
    hits = []
    for s, m in enumerate(outputs, 1):
        logits = trunk.lm_head(m).float()
        hits.append(draw(logits, noise(1 + s, rows), temperature) == padded[:, 1 + s:1 + s + rows])
    return torch.stack(hits, -1)


@torch.no_grad()
def dflash_hits(trunk, drafter, ids, temperature, noise, anchors_per_pass=64):
    """[B, T, block - 1] bool: with token p as the anchor, row i equals token p + i, given that the earlier rows did."""
    rows, block = ids.shape[1], drafter.c.block_size
    padded = pad_to_chunks(ids, block)
    features = torch.cat(trunk(padded, taps=drafter.c.target_layer_ids)[1], -1)
    noises = [noise(i, rows) for i in range(1, block)]
    hits = []
    for first in range(0, rows, anchors_per_pass):
        anchors = torch.arange(first, min(first + anchors_per_pass, rows), device=ids.device)
        at = anchors.expand(ids.shape[0], -1)
        hidden = drafter(features, padded.gather(1, at), at, trunk.model.embed_tokens)
        logits = trunk.lm_head(hidden).float()
        found = []
        for i in range(1, block):
            scores = logits[:, :, i]
            if drafter.c.version == 2:
                previous = padded.gather(1, at + i - 1)
                scores = drafter.candidate_scores(scores, hidden[:, :, i], previous)
            n = noises[i - 1][:, first:first + len(anchors)] if temperature > 0 else None
            found.append(draw(scores, n, temperature) == padded.gather(1, at + i))
        hits.append(torch.stack(found, -1))
    return torch.cat(hits, 1)


def walk(hits, starts, lengths):
    """Plays the rounds: from each anchor, accepts drafts up to the first miss, then goes on from the trunk's own token.

    hits[b, p, j]: the draft for token p + 1 + j with token p as the anchor. Drafts past the last token do not count.
    Returns dict: rounds, tokens (published by rounds, so without each text's first), drafted[j], accepted[j]
    (round-wise, unconditional: the first j + 1 drafts were all accepted), and the same first-draft rate at every position."""
    hits, starts, lengths = hits.cpu(), starts.tolist(), lengths.tolist()
    k = hits.shape[-1]
    prefix = hits.int().cumprod(-1)
    result = {"rounds": 0, "tokens": 0, "drafted": [0] * k, "accepted": [0] * k, "positions": 0, "first_hits": 0}
    for b, (start, length) in enumerate(zip(starts, lengths)):
        runs = prefix[b].tolist()
        result["positions"] += length - 1 - start
        result["first_hits"] += sum(runs[p][0] for p in range(start, length - 1))
        p = start
        while p < length - 1:
            left = length - 1 - p
            for j in range(min(k, left)):
                result["drafted"][j] += 1
                result["accepted"][j] += runs[p][j]
            published = min(sum(runs[p]) + 1, left)
            result["rounds"] += 1
            result["tokens"] += published
            p += published
    return result


def acceptance(trunk, drafters, prompts, total, temperature, first_seed, stops, device, batch=32):
    """{drafter name: walk result} over the prompts; prompt i has seed first_seed + i. drafters: {name: module or (mtp, k)}."""
    seeds = [first_seed + i for i in range(len(prompts))]
    ids, starts, lengths = generate(trunk, prompts, total, [temperature] * len(prompts), seeds, stops, device)
    results = {}
    for b in range(0, len(prompts), batch):
        part, start, length = ids[b:b + batch], starts[b:b + batch], lengths[b:b + batch]
        seed = torch.tensor(seeds[b:b + batch], device=device)[:, None]

        def noise(ahead, rows):
            if temperature == 0:
                return None
            index = torch.arange(rows, device=device)[None] + ahead - start[:, None]
            return gumbel(seed.expand(index.shape), index.clamp_min(0), trunk.c.vocab_size)

        for name, drafter in drafters.items():
            if isinstance(drafter, tuple):
                hits = mtp_hits(trunk, drafter[0], part, temperature, noise, drafter[1])
                hits = torch.nn.functional.pad(hits, (0, 0, 1, 0))[:, :-1]  # row p drafts after token p + 1
            else:
                hits = dflash_hits(trunk, drafter, part, temperature, noise)
            found = walk(hits, start, length)
            total_of = results.setdefault(name, found if b == 0 else None)
            if total_of is not found:
                for key, value in found.items():
                    total_of[key] = ([x + y for x, y in zip(total_of[key], value)] if isinstance(value, list)
                                     else total_of[key] + value)
    return results, (ids, starts, lengths)
