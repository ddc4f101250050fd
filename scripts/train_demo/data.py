"""Corpus, split, and packed training rows.

A row is ROW tokens of whole documents; `documents` numbers them (they do not see each other), `learn` marks the tokens that
are predicted with loss: all of a plain story but its first token, only the answer of a chat.
"""

import concurrent.futures
import lzma
import multiprocessing
import os
import random

import numpy

import chats
import facts

ROW = 512
HELD_OUT = 500
SEPARATOR = "<|endoftext|>"


def read_corpus(path):
    """(training stories, held-out stories): the last 500 stories of the shuffled file are held out."""
    opener = lzma.open if str(path).endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        stories = [s.strip() for s in file.read().split(SEPARATOR)]
    stories = [s for s in stories if s]
    return stories[:-HELD_OUT], stories[-HELD_OUT:]


def encode_documents(tokenizer, documents):
    """[(ids, number of leading tokens without loss)] for (prompt, answer) pairs; plain stories have an empty prompt."""
    prompts = tokenizer.encode_batch_fast([p for p, _ in documents])
    answers = tokenizer.encode_batch_fast([a for _, a in documents])
    return [(p.ids + a.ids, max(1, len(p.ids))) for p, a in zip(prompts, answers)]


def pack(encoded, rng):
    """(ids, documents, learn) arrays [rows, ROW]; unused places have document -1 and no loss."""
    bins, done = [], []
    for ids, skip in rng.sample(encoded, len(encoded)):
        ids = ids[:ROW]
        fitting = [b for b in bins if b[0] + len(ids) <= ROW]
        if fitting:
            best = max(fitting, key=lambda b: b[0])
        else:
            best = [0, []]
            bins.append(best)
        best[0] += len(ids)
        best[1].append((ids, skip))
        if best[0] > ROW - 24 or len(bins) > 64:
            full = max(bins, key=lambda b: b[0])
            bins.remove(full)
            done.append(full[1])
    done += [b[1] for b in bins]
    ids = numpy.zeros((len(done), ROW), numpy.uint16)
    documents = numpy.full((len(done), ROW), -1, numpy.int8)
    learn = numpy.zeros((len(done), ROW), bool)
    for r, row in enumerate(done):
        at = 0
        for d, (tokens, skip) in enumerate(row):
            ids[r, at:at + len(tokens)], documents[r, at:at + len(tokens)] = tokens, d
            learn[r, at + skip:at + len(tokens)] = True
            at += len(tokens)
    return ids, documents, learn


def chat_documents(stories, found, rng, rename_share):
    """One chat per story, one small talk per fifty, and two-story chats where both fit a row."""
    documents, earlier = [], None
    for text, facts_of in zip(stories, found):
        if rng.random() < rename_share:
            text, facts_of = facts.rename(text, facts_of, rng)
        use = earlier if earlier and len(earlier[1]) + len(text) < 1500 and rng.random() < 0.3 else None
        prompt, answer, _ = chats.story_chat(text, facts_of, rng, use)
        documents.append((prompt, answer))
        earlier = (chats.wish(facts_of, len(text), rng)[0], text) if len(text) < 800 and not use else None
        if rng.random() < 0.02:
            documents.append(chats.small_talk(rng))
    return documents


def epoch_rows(tokenizer, stories, found, seed, rename_share=0.6):
    """One epoch's packed rows: every story once as plain text and once as a chat, drawn anew for each seed."""
    rng = random.Random(seed)
    documents = [("", s + SEPARATOR) for s in stories] + chat_documents(stories, found, rng, rename_share)
    return pack(encode_documents(tokenizer, documents), rng)


_shared = {}


def _work(job):
    seed, part, parts = job
    stories, found = _shared["stories"][part::parts], _shared["found"][part::parts]
    return epoch_rows(_shared["tokenizer"], stories, found, seed * 1000 + part)


def epochs(tokenizer, stories, found, count, workers):
    """`count` epochs of packed rows, each [rows, ROW] and shuffled, made by forked workers."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _shared.update(tokenizer=tokenizer, stories=stories, found=found)
    jobs = [(seed, part, workers) for seed in range(count) for part in range(workers)]
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        parts = list(pool.map(_work, jobs))
    for seed in range(count):
        arrays = [numpy.concatenate(x) for x in zip(*parts[seed * workers:(seed + 1) * workers])]
        order = numpy.random.default_rng(seed).permutation(len(arrays[0]))
        yield tuple(a[order] for a in arrays)


OPENINGS = ["Once upon a time, there was a little {k} named {n}.", "{n} was a {k} who had {t}.", "One day, {n} found {t}.",
            "There was once a {k} called {n} who wanted {t}.", "{n} and {o} were playing in the park.",
            "Once there was {t} in a big forest.", "Every morning {n} looked at {t}.", "In a small town lived a {k} named {n}."]


def opening(facts_of, rng):
    """A sentence to continue: a stock opening filled with a story's facts, so that it has no corpus text."""
    return rng.choice(OPENINGS).format(k=facts_of.kind or "child", n=facts_of.name or "Anna", o=facts_of.other or "Ben",
                                       t=chats.article(facts_of.things[0]) if facts_of.things else "a box")


def prompts(stories, found, seed, chat, plain):
    """Named prompts for generation from held-out stories' facts: `chat` chat prompts without reasoning, `plain` openings.

    Returns [(name, text, words the answer should contain)]."""
    rng, out = random.Random(seed), []
    for i, (text, facts_of) in enumerate(zip(stories, found)):
        if len(out) == chat:
            break
        words, wanted = chats.wish(facts_of, len(text), rng)
        messages = ([("system", rng.choice(chats.SYSTEM))] if rng.random() < 0.2 else []) + [("user", words)]
        if wanted:
            out.append((f"chat-{i}", chats.render(messages)[0], wanted))
    for i in range(len(stories) - plain, len(stories)):
        out.append((f"plain-{i}", opening(found[i], rng), []))
    return out
