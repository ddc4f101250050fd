"""What a story really has: characters, things and its kind of ending, found with counts and regular expressions.

Nouns are found by statistics (words that mostly follow a determiner and precede a function word or punctuation), names by
"a girl named Lily" and capital letters inside sentences. Renaming a character consistently in story and prompt makes
a model copy names from the prompt instead of reciting the commonest ones.
"""

import collections
import dataclasses
import math
import re

NAMED = re.compile(r"\b([a-z]+) (?:who was )?(?:named|called) ([A-Z][a-z]+)\b")
NOUN = re.compile(
    r"\b(?:a|an|the|his|her|my|your|their|our|some|two|three) (?:[a-z]+ )?([a-z]+)(?=[.,!?;\"]| (?:in|on|and|to|was|were|"
    r"is|that|with|for|of|at|who|but|had|said|so|from|because|he|she|they|it|into|under|near|by|or|when|as|could|did|"
    r"would|looked|felt|went|ran|came|saw|made|up|down|again)\b)")
NOT_THINGS = set("""
time mom friend friends dad idea end lot ground moral way bug place side top thing name day morning night home sound noise
voice plan piece pieces fun smile eyes hand hands head face family parents mother father brother sister middle began ran
sorry replied problem part days animal animals man woman lady kids kid children child boy girl boys girls word words trip
line fault promise truth case chance ones minutes price rest started ended belonged hug bite nap arms leg legs feet mouth
nose tail ears neck knee mess lesson world moment owner corner edge bottom ending bit arm body back faces wings paw
surprise story group race number mistake game games fire adventure breath thief gun
explained popped tightly highest fastest biggest importance anyway true sight news luck air land turn look idea""".split())
KINDS = set("""
girl boy dog cat bird bunny fish bear frog squirrel rabbit mouse duck bug car monkey bee elephant ant lion horse cow turtle
owl puppy crab kitten pig penguin fireman zebra snake truck dolphin panda pirate fairy painter baby swan clown boat hippo
otter pilot sheep giraffe kangaroo spider reindeer goat pony octopus deer seal shark sailor chicken cricket teacher rat
tiger parrot hedgehog doll worm toy man lady woman farmer princess prince king queen fox wolf butterfly caterpillar snail
robot dragon witch unicorn dinosaur train""".split())
GIRLS = """Lily Sue Lucy Mia Amy Sally Kitty Jane Sarah Daisy Emma Bella Anna Luna Ella Lisa Mary Molly Betty Rose Poppy Jenny
Emily Lola Tina Grace Ellie Alice Sophie Sara Millie Susie Ruby Kate Julie Penny Annie Katie Zara Clara Lila Mandy Claire
Jill Gigi Chloe Sandy Joy Abigail Nina Maya Hannah Olivia Eva Ivy Nora Zoe Rosie Holly Laura Amelia Leah Naomi Ada Elsa
Iris Jasmine Kim Maria Paula Rita Stella Tara Vera Wendy Hazel Carmen Flora Greta Heidi Fiona""".split()
BOYS = """Tim Tom Max Sam Bob Timmy Jack Ben Billy John Leo Jerry Joe Benny Fred Mark Bobby Andy Pete Bill Jim Sammy Tommy
Peter Finn Toby Charlie Jake Joey George Oliver David James Alex Carl Danny Daniel Noah Luke Adam Henry Oscar Hugo Felix
Paul Simon Eric Kevin Ryan Nick Will Harry Martin Theo Simon Ravi Omar Ali Pablo Victor Walter Arthur Louis Frank Dylan
Ethan Owen Lucas Mason Nathan Philip Ralph Robert Scott Steven Thomas Zack""".split()
PETS = """Max Spot Fluffy Bobo Buddy Mimi Whiskers Blue Ducky Benny Momo Chirpy Buzz Remy Ollie Tiny Spike Lulu Polly Binky
Finny Freddy Tweet Zoom Pippin Mittens Buzzy Zip Teddy Kiki Squeaky Speedy Sunny Pip Pinky Pepper Snowy Rover Zigzag
Gigi Rex Coco Rusty Biscuit Patches Shadow Nibbles Waffles Peanut Ginger Smoky Bongo Duke Scout Honey Pebbles Otto
Milo Dash Felix Bruno Tango Bubbles Misty Nutty Hoppy Tippy Ziggy""".split()
# Kind of ending: (pattern searched in the last two sentences, how a prompt may ask for it, how a plan may state it).
ENDINGS = [
    (r"best friends|good friends|new friends?\b|became friends", ["the friends stay together in the end",
     "it ends with a new friendship", "they are friends at the end"], "They will be friends at the end."),
    (r"learned|lesson|moral", ["it should end with a lesson", "it teaches something at the end", "end it with a moral"],
     "It will end with a lesson."),
    (r"asleep|sleep|slept|bed\b", ["it ends at bedtime", "it should end with sleep"], "It will end with sleep."),
    (r"\bsad\b|cried|crying|bad ending|never saw", ["it has a sad ending", "make the ending sad"], "The ending will be sad."),
    (r"went home|ran home|go home|back home", ["it ends with going home", "they go home at the end"],
     "It will end with going home."),
    (r"happy|happily|smiled|laughed|fun|glad|proud", ["it has a happy ending", "make it end well", "the ending is happy"],
     "The ending will be happy."),
]


@dataclasses.dataclass
class Facts:
    name: str = ""
    kind: str = ""
    other: str = ""
    things: tuple = ()
    ending: int = -1
    pool: str = ""


class FactFinder:
    """Counts over the training stories once; `find` then works on any story."""

    def __init__(self, stories):
        total, noun, documents, inner = (collections.Counter() for _ in range(4))
        for text in stories:
            lower = text.lower()
            total.update(re.findall(r"[a-z]+", lower))
            found = NOUN.findall(lower)
            noun.update(found)
            documents.update(set(found))
            inner.update(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text))
        self.idf = {w: math.log(len(stories) / (1 + documents[w])) for w, n in noun.items()
                    if n >= 15 and n > 0.3 * total[w] and len(w) > 2 and w not in NOT_THINGS}
        known = set(GIRLS) | set(BOYS) | set(PETS)
        self.names = {w for w in known if inner[w] >= 3}

    def find(self, text):
        facts, names = Facts(), collections.Counter(w for w in re.findall(r"[A-Z][a-z]+", text) if w in self.names)
        for kind, name in NAMED.findall(text):
            if kind in KINDS and len(re.findall(rf"\b{name}\b", text)) >= 2:
                facts.name, facts.kind = name, kind
                break
        rest = [n for n, count in names.most_common() if n != facts.name and count >= 2]
        if not facts.name and rest:
            facts.name = rest.pop(0)
        facts.other = rest[0] if rest else ""
        if facts.kind:
            facts.pool = {"girl": "girls", "boy": "boys"}.get(facts.kind, "pets")
        elif facts.name:
            in_girls, in_boys = facts.name in GIRLS, facts.name in BOYS
            facts.pool = "girls" if in_girls and not in_boys else "boys" if in_boys and not in_girls else ""
        counts = collections.Counter(re.findall(r"[a-z]+", text.lower()))
        weighed = sorted(((counts[w] * self.idf[w], w) for w in set(NOUN.findall(text.lower())) & self.idf.keys()
                          if w != facts.kind and (counts[w] >= 2 or self.idf[w] > 4)), reverse=True)
        facts.things = tuple(w for _, w in weighed[:5])
        tail = " ".join(re.split(r"(?<=[.!?\"])\s+", text.removesuffix("The end.").strip())[-2:])
        facts.ending = next((i for i, (pattern, _, _) in enumerate(ENDINGS) if re.search(pattern, tail)), -1)
        return facts


def rename(text, facts, rng):
    """The story and its facts with the main character's name replaced by another of the same pool."""
    pool = {"girls": GIRLS, "boys": BOYS, "pets": PETS}.get(facts.pool)
    if not pool:
        return text, facts
    new = rng.choice(pool)
    if re.search(rf"\b{new}\b", text):
        return text, facts
    return re.sub(rf"\b{facts.name}\b", new, text), dataclasses.replace(facts, name=new)
