"""Turns a story into a chat whose prompt names what the story has, rendered as chat_template.jinja renders it."""

import dataclasses
import re

from facts import ENDINGS

SYSTEM = ["You are a friendly storyteller.", "You tell short stories for children.", "You are a helpful assistant.",
          "You write simple stories in simple words.", "You are a kind grandmother who tells bedtime stories.",
          "Tell stories that small children understand.", "You are Convoy, a small model that tells stories.",
          "Answer with a story."]
ASK = ["Tell me a{s} story", "Write a{s} story", "Please tell me a{s} story", "Can you tell me a{s} story", "Make up a{s} story",
       "I would like a{s} story", "Could you write a{s} story", "Tell a{s} story", "Please write a{s} story for my child",
       "Give me a{s} story", "I want to hear a{s} story", "Tell us a{s} story", "Write a{s} tale", "A{s} story",
       "Can I have a{s} bedtime story", "Tell me a{s} bedtime story", "My daughter wants a{s} story",
       "My son would like a{s} story", "We need a{s} story"]
AGAIN = ["Now another one. ", "That was nice. ", "Thank you! ", "One more, please. ", "Great. ", ""]
TALK = [
    (["Hello", "Hi", "Hello!", "Hi there!", "Good morning", "Good evening", "Hey"],
     ["Hello! I tell stories for children. Who should the story be about?",
      "Hello! Would you like to hear a story? Tell me a name and a thing, and I will begin."]),
    (["Who are you?", "What are you?", "What is your name?", "Are you a person?", "What model are you?", "Introduce yourself."],
     ["I am a small model that tells stories for children. Give me a name and a thing, and I will tell a story about them."]),
    (["What can you do?", "How can you help me?", "Help", "What do you know?", "What should I ask?", "What are you good at?"],
     ["I can tell short stories in simple words. You can name a child, an animal, a thing or an ending, and I will use them."]),
    (["What is the capital of France?", "What is two plus two?", "Write a program in C.", "Who won the game yesterday?",
      "What is the weather today?", "Explain how a computer works.", "Translate this into German.", "How old is the sun?",
      "Solve this equation.", "Who is the president?", "What is the meaning of life?", "How do I fix my car?",
      "Give me a recipe for bread.", "Write an email to my boss.", "What happened in the year 1900?"],
     ["I do not know that. I only know stories for children. Would you like to hear one?"]),
    (["Thank you", "Thanks!", "Thank you very much.", "That was lovely.", "Nice story!", "I like it."],
     ["I am glad you liked it! Would you like to hear another story?"]),
    (["Goodbye", "Bye!", "Good night", "See you tomorrow.", "Good night!"],
     ["Good night! Sweet dreams, and come back for another story."]),
]


def article(noun):
    if noun.endswith("s") and not noun.endswith("ss") and noun not in ("bus", "gas", "octopus", "cactus", "dress"):
        return f"some {noun}"
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def wish(facts, length, rng):
    """(user's words, what the answer must contain) for a story of `length` characters with these facts."""
    things = list(facts.things[:3])
    rng.shuffle(things)
    things = things[:rng.choice([0, 1, 1, 1, 2, 2, 3])] if facts.name or facts.kind else things[:max(1, rng.randint(1, 3))]
    who = ""
    if facts.name and rng.random() < 0.85:
        who = f"a {facts.kind} named {facts.name}" if facts.kind and rng.random() < 0.7 else facts.name
        if facts.kind and rng.random() < 0.2 and who != facts.name:
            who = f"a {facts.kind} called {facts.name}"
        if facts.other and rng.random() < 0.35:
            who += f" and {facts.other}"
    elif facts.kind:
        who = article(facts.kind)
    size = " short" if length < 560 and rng.random() < 0.5 else " long" if length > 1000 and rng.random() < 0.5 else ""
    if not size and rng.random() < 0.3:
        size = rng.choice([" little", " nice", " simple", " new", " children's"])
    listed = [article(t) for t in things]
    objects = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1] if listed else ""
    style = rng.random()
    if style < 0.14 and things:
        words = things + ([facts.name] if facts.name and rng.random() < 0.5 else [])
        text = rng.choice(ASK).format(s=size) + " with the word" + ("s " if len(words) > 1 else " ") + ", ".join(words)
        who = facts.name if facts.name in words else ""
    elif style < 0.22 and (who or objects):
        text = rng.choice(["Story about ", "About ", "Story: "]) + (who or objects)
        things = things if not who else []
    else:
        text = rng.choice(ASK).format(s=size)
        if who:
            text += f" about {who}"
            if objects:
                text += rng.choice([f" and {objects}", f" with {objects}", f". There should be {objects} in it",
                                    f". It should have {objects}", f", with {objects} in it"])
        elif objects:
            text += rng.choice([f" about {objects}", f" with {objects}", f" that has {objects} in it"])
    if facts.ending >= 0 and rng.random() < 0.4:
        ending = rng.choice(ENDINGS[facts.ending][1])
        text += f". {ending[0].upper()}{ending[1:]}" if rng.random() < 0.6 else f", and {ending}"
    text += "?" if text.startswith(("Can", "Could")) and ". " not in text else rng.choice([".", ".", ".", "!", ""])
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    wanted = [w for w in ([facts.name] if facts.name and facts.name in who else []) + things]
    return text, wanted


def plan(facts, rng):
    """A line of reasoning that names the story's facts."""
    parts = []
    if facts.name:
        who = f"a {facts.kind} named {facts.name}" if facts.kind else facts.name
        parts.append(rng.choice(["The story is about {}.", "I will tell a story about {}.", "The main character is {}."]).format(who))
    if facts.things:
        listed = [article(t) for t in facts.things[:2]]
        parts.append(rng.choice(["There will be {}.", "It needs {}.", "It has {} in it."]).format(" and ".join(listed)))
    if facts.ending >= 0:
        parts.append(ENDINGS[facts.ending][2])
    return " ".join(parts) or "I will tell a simple story."


def turn(role, text):
    return f"<|im_start|>{role}\n{text.strip()}<|im_end|>\n"


def render(messages, thinking=None):
    """(prompt, expected beginning of the answer): thinking is the reasoning text, or None for an answer at once."""
    prompt = "".join(turn(role, text) for role, text in messages) + "<|im_start|>assistant\n"
    return (prompt + "<think>\n\n</think>\n\n", "") if thinking is None else (prompt + "<think>\n", f"{thinking}\n</think>\n\n")


def story_chat(text, facts, rng, earlier=None):
    """(prompt, answer, wanted words) of one training chat; earlier = (prompt words, story) of a turn before it."""
    wanted, messages = [], []
    if rng.random() < 0.35:
        messages.append(("system", rng.choice(SYSTEM)))
    if earlier:
        messages += [("user", earlier[0]), ("assistant", earlier[1])]
    sentences = re.split(r"(?<=[.!?])\s+", text)
    if rng.random() < 0.08 and len(sentences) > 4 and not earlier:
        opening = " ".join(sentences[:rng.randint(1, 2)])
        words = rng.choice(["Continue this story: ", "How does this story go on? ", "Finish the story: "]) + opening
        text = text[len(opening):].strip()
    else:
        words, wanted = wish(facts, len(text), rng)
        if earlier:
            words = rng.choice(AGAIN) + words
        asked = [t for t in facts.things if t in wanted]
        facts = dataclasses.replace(facts, things=tuple(asked + [t for t in facts.things if t not in wanted]))
    messages.append(("user", words))
    prompt, start = render(messages, plan(facts, rng) if rng.random() < 0.2 else None)
    return prompt, start + text + "<|im_end|>", wanted


def small_talk(rng):
    asked, answers = rng.choice(TALK)
    messages = [("system", rng.choice(SYSTEM))] if rng.random() < 0.3 else []
    words = rng.choice(asked)
    messages.append(("user", words.lower() if rng.random() < 0.2 else words))
    thinking = rng.choice(["This is not about a story.", "I will answer kindly."]) if rng.random() < 0.15 else None
    prompt, start = render(messages, thinking)
    return prompt, start + rng.choice(answers) + "<|im_end|>"
