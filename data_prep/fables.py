"""Short fables with a moral, written by a grammar: something to read from a model that trained for minutes.

No network, no packages, the same text everywhere. {word} in an alternative stands for one of that rule's alternatives;
within a fable the rules of KEPT give the same words each time: its hero stays a goose.
"""

import random
import re

from corpora import Corpus, Document

FABLES = 5000  # of 200 bytes on average
LONGEST = 250  # a whole one lies within the quickstart's sequences of 256
KEPT = {"hero", "rival", "thing", "trait"}
ANIMALS = (
    "hedgehog goose walrus badger pigeon octopus llama snail camel heron toad weasel penguin beetle ostrich sloth mole "
    "newt stork hamster"
).split()
THINGS = (
    "trumpet/umbrella/teapot/ladder/wheelbarrow/left boot/library card/map of the moon/very small piano/jar of thunder/"
    "spare door/wooden clock/cheese/pair of spectacles/bucket of fog/brass bell/grammar/third-class ticket/cactus/sofa/"
    "kite/diploma/lamp/borrowed hat"
).split("/")
PLACES = (
    "Lisbon/the post office/a cupboard/Tuesday's market/the opera/a lighthouse/the tax office/the Alps/a very long queue/"
    "the pond/Antwerp"
).split("/")
TRAITS = (
    "nervous/retired/polite/ambitious/slightly damp/well-read/sleepless/unemployed/suspicious/magnificent/hungry/famous/"
    "honest/forgetful"
).split("/")
RULES = {
    "fable": ["{opening} {talk} {end}\nMoral: {moral}\n"],
    "opening": [
        "Once there was a {trait} {hero} with a {thing}.",
        "In {place} lived a {hero} who had a {thing}.",
        "A {trait} {hero} inherited a {thing}.",
        "Long ago a {hero} won a {thing} at cards.",
    ],
    "topic": "taxes/the weather in {place}/love/soup/the end of time/geese/the price of butter/long division".split(
        "/"
    ),
    "talk": [
        '"Is that a {thing}?" asked the {rival}. "{answer}," said the {hero}.',
        '"Lend me your {thing}," said the {rival}. "{answer}," said the {hero}.',
        '"I had a {thing} once," wept the {rival}. "{answer}," said the {hero}.',
        '"How much is the {thing}?" asked the {rival}. "{answer}," said the {hero}.',
    ],
    "answer": [
        "Only on Sundays",
        "It was, before the soup",
        "Ask my lawyer, the {animal}",
        "You are the third {rival} today",
        "I would rather marry a {animal}",
        "Not while the moon is watching",
        "That depends on the {thing}",
        "Not before breakfast",
        "Everything is, in a way",
    ],
    "end": [
        "The {rival} wrote this down.",
        "So they shared the {thing}.",
        "At once the {thing} fell into the sea.",
        "The {rival} laughed until it grew dark.",
        "They argued until the {thing} wept.",
        "The {rival} ate the {thing}, and was sorry.",
        "A {animal} called the police.",
        "The {hero} became {job} and was happy.",
        "They were married in {place}.",
        "The {rival} left for {place} and became {job}.",
        "The {thing} was never seen again.",
        "Today the {hero} speaks of {topic}.",
        "The {thing} is now {job}.",
    ],
    "job": (
        "a dentist/mayor of {place}/a poet/minister of soup/an accountant/a legend/somebody's uncle/a famous tenor"
    ).split("/"),
    "moral": [
        "never lend a {thing} to a {rival}.",
        "who has a {thing} needs no {rival}.",
        "a {trait} {hero} is still a {hero}.",
        "do not speak of {topic}.",
        "even a {rival} may be {trait}.",
        "there is always another {thing}.",
        "soup first, then the {thing}.",
        "trust no {rival} in {place}.",
    ],
    "hero": ANIMALS,
    "rival": ANIMALS,
    "animal": ANIMALS,
    "thing": THINGS,
    "place": PLACES,
    "trait": TRAITS,
}


def fable(number):
    draw, kept = random.Random(number).random, {}  # of its methods this one is the same in every version of Python

    def words(rule):
        if rule in kept:
            return kept[rule]
        choices = [c for c in RULES[rule] if c not in kept.values()]
        text = re.sub(r"\{(\w+)\}", lambda m: words(m[1]), choices[int(draw() * len(choices))])
        if rule in KEPT:
            kept[rule] = text
        return text

    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", words("fable"))


class FablesCorpus(Corpus):
    def __init__(self, seed, val_fraction):
        super().__init__("fables", seed, val_fraction)
        self.total_bytes = FABLES * 200

    def settings(self):
        return {**super().settings(), "fables": FABLES}

    def _documents(self):
        for number in range(FABLES):
            text = fable(number).encode()
            if len(text) <= LONGEST:
                yield Document(self._split(number), text)
