#!/usr/bin/env python3
"""Writes the demo's examples: one everyday sentence in, one strict line of JSON out.

    python3 assets/demo/make.py            # writes train.jsonl, held-out.jsonl and instances.jsonl beside itself
    python3 assets/demo/make.py --check    # exit 1 where the files differ from what would be written

The same bytes on every machine: Python's `random.Random(seed).random()` is the only source of chance and its sequence
is specified. Everything here was written for Hearth (Apache-2.0, like the rest); the names are common first and last
names in free combination.

An instance is a sentence frame filled with slot values. Training and held-out examples share no frame, no reminder
clause, no person and so no instance: a model that scores on the held-out part has learned the job, not the sentences.
They do share the words for days, times and tasks, because those are what there is to learn.

    {"task": one of 8, "who": copied from the sentence, "day": mon..sun, "time": 24-hour HH:MM, "remind": minutes or 0}
"""

import json
import pathlib
import random
import sys

SEED = 2
N_TRAIN = 316
N_HELD_OUT = 60
SYSTEM = "Turn the message into one line of JSON."

# canonical task -> (noun phrases, verb phrases); {who} is the person.
TASKS = {
    "call": (["a call with {who}", "a phone call with {who}"], ["call {who}", "phone {who}", "ring {who}"]),
    "meeting": (["a meeting with {who}", "a sit-down with {who}"], ["meet {who}", "meet with {who}"]),
    "lunch": (["lunch with {who}", "a lunch with {who}"], ["have lunch with {who}", "take {who} to lunch"]),
    "dinner": (["dinner with {who}", "supper with {who}"], ["have dinner with {who}", "eat dinner with {who}"]),
    "coffee": (["coffee with {who}", "a coffee with {who}"], ["have coffee with {who}", "grab a coffee with {who}"]),
    "checkup": (["a check-up with {who}", "a checkup with {who}"], ["see {who} for a check-up", "visit {who} for a checkup"]),
    "lesson": (["a lesson with {who}", "a class with {who}"], ["take a lesson with {who}", "have a class with {who}"]),
    "visit": (["a visit to {who}", "a visit from {who}"], ["visit {who}", "drop in on {who}"]),
}
# When a task may be, where not at any hour from 8 to 20.
TIMES_OF_DAY = {"lunch": range(11, 15), "dinner": range(17, 21)}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
HOURS = ["twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
AHEAD = [
    ("five minutes", 5), ("5 minutes", 5), ("ten minutes", 10), ("10 minutes", 10), ("15 minutes", 15),
    ("a quarter of an hour", 15), ("20 minutes", 20), ("twenty minutes", 20), ("half an hour", 30), ("30 minutes", 30),
    ("an hour", 60), ("one hour", 60), ("two hours", 120), ("2 hours", 120),
]

# Sentence frames. {noun}/{verb}: the task with the person; {on_day}: "on Monday", "next Monday"; {day}: "Monday";
# {at_time}: "at 3 pm"; {time}: "3 pm". A frame starts with a capital whatever fills it.
TRAIN_FRAMES = [
    "Put {noun} in my calendar {on_day} {at_time}.",
    "Can you add {noun} {on_day} {at_time}?",
    "Please schedule {noun} for {time} {on_day}.",
    "I need {noun} {on_day} {at_time}.",
    "{day}, {time}: {noun}.",
    "{noun}, {day} {at_time}.",
    "{on_day} {at_time} I have {noun}.",
    "Set up {noun} {on_day}, {time}.",
    "I would like {noun} {at_time} {on_day}.",
    "Book {noun} for {day} {at_time}, please.",
    "Could we do {noun} {on_day} {at_time}?",
    "There will be {noun} {on_day} {at_time}.",
    "Make it {day} {at_time} for {noun}.",
    "Plan {noun} {at_time} {on_day}, thanks.",
    "Note down {noun} for {day}, {time}.",
    "New entry: {noun}, {time}, {day}.",
    "How about {noun} {on_day} {at_time}?",
    "I agreed to {noun} {on_day} {at_time}.",
    "Keep {time} free {on_day} for {noun}.",
    "We said {day} {at_time} for {noun}.",
    "I have to {verb} {on_day} {at_time}.",
    "I want to {verb} {at_time} {on_day}.",
    "{on_day} {at_time} I will {verb}.",
    "Please let me {verb} {on_day} {at_time}.",
    "I am going to {verb} {on_day}, {time}.",
    "{verb} {on_day} {at_time}.",
    "{day} {at_time}, {verb}.",
    "Time to {verb}: {day}, {time}.",
    "I promised to {verb} {on_day} {at_time}.",
    "Hey, I must {verb} {at_time} {on_day}.",
    "We should {verb} {on_day} {at_time}.",
    "My plan is to {verb} {on_day} {at_time}.",
]
HELD_OUT_FRAMES = [
    "Enter {noun} for {time} on {day}.",
    "Hi, could you pencil in {noun} {on_day} {at_time}?",
    "{at_time} {on_day} there is {noun}.",
    "Reserve {day} {at_time} for {noun}.",
    "I just arranged {noun} {on_day} {at_time}.",
    "For {day} {at_time}, write down {noun}.",
    "It looks like {noun} is {on_day} {at_time}.",
    "{noun} will be {on_day} {at_time}.",
    "Don't let me forget {noun} {on_day} {at_time}.",
    "Tell my calendar that I {verb} {on_day} {at_time}.",
    "I need to {verb}, {day}, {time}.",
    "{at_time} {on_day} I'd like to {verb}.",
    "Would it work to {verb} {on_day} {at_time}?",
    "On my list: {verb}, {day} {at_time}.",
    "{on_day} I get to {verb} {at_time}.",
    "Let's {verb} {on_day} {at_time}.",
]

# Reminder clauses, put after the frame as a sentence of their own. {ahead}: "ten minutes".
TRAIN_CLAUSES = [
    "Remind me {ahead} before.", "Please remind me {ahead} ahead.", "Ping me {ahead} before that.",
    "Set a reminder {ahead} earlier.", "I want a reminder {ahead} before.", "Alert me {ahead} ahead of time.",
    "Warn me {ahead} in advance.", "Give me {ahead} of warning.",
]
HELD_OUT_CLAUSES = [
    "Let me know {ahead} before.", "A reminder {ahead} ahead would be nice.", "Nudge me {ahead} earlier.",
    "Tell me {ahead} in advance.",
]
# Ways to say that no reminder is wanted, besides not speaking of it.
TRAIN_NO_REMINDER = ["No reminder needed.", "Thanks!", "I won't need a reminder."]
HELD_OUT_NO_REMINDER = ["No need to remind me.", "Thank you."]

TITLES = ["Dr", "Mr", "Mrs", "Ms", "Prof"]
TRAIN_FIRST = """Adam Alice Amir Anna Ben Bianca Boris Carla Carlos Chen Clara Daniel Daria David Diego Elena Emil Emma
Erik Eva Farid Felix Fiona Frank George Grace Hana Hans Hugo Ida Igor Irene Ivan Jack Jana Jonas Julia Karim Kate Kofi
Lara Leo Lena Linda Louis Lucy Luis Maria Marco Marta Max Mei Mila Nadia Nick Nina Noah Olga Omar Oscar Paula Peter
Priya Rachel Rosa Sam Sara Simon Sofia Stefan Tara Theo Tom Vera Victor Yuki Zara""".split()
TRAIN_LAST = """Adams Ahmed Baker Bauer Bell Berger Brown Carter Chavez Cohen Cooper Costa Cruz Dale Diaz Evans Fischer
Foster Garcia Gray Green Hall Hansen Hill Ito Jensen Jones Kaya Keller Khan Kim King Klein Lang Larsen Lee Lopez Mason
Meyer Mills Moore Morris Nguyen Novak Olsen Park Patel Perez Petrov Ramos Reed Rossi Roy Santos Sato Schmidt Shah Silva
Singh Smith Stone Suzuki Tan Taylor Torres Turner Vogel Walker Wang Weber White Wolf Wong Wright Young""".split()
HELD_OUT_FIRST = """Aaron Amelia Arthur Bella Bruno Cora Dana Edith Eliot Esther Gina Harry Helen Ines Jasmin Joel
Kira Laila Liam Malik Miriam Mona Nora Owen Pablo Petra Quinn Rafael Ruth Selma Silas Tanya Tobias Ursula Wendy
Xavier""".split()
HELD_OUT_LAST = """Abbott Ali Becker Bishop Burke Castro Chan Clark Dunn Ferrari Flores Hayes Hoffman Hughes Jackson
Kowalski Lam Martin Mendoza Miller Murphy Nakamura Okafor Parker Quigley Richter Russell Schneider Scott Tanaka Thomas
Vega Watson Yilmaz Zhang""".split()


class Chance:
    """Chance from `random()` alone: `choice` and `shuffle` of the standard library may change between versions."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def below(self, n):
        return int(self.random() * n)

    def one_of(self, values):
        return values[self.below(len(values))]

    def deck(self, values, n):
        """n values, each as often as every other (± 1), in shuffled order."""
        cards = [values[i % len(values)] for i in range(n)]
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            cards[i], cards[j] = cards[j], cards[i]
        return cards


def person(chance, first, last):
    kind = chance.random()
    if kind < 0.45:
        return chance.one_of(first)
    if kind < 0.75:
        return f"{chance.one_of(first)} {chance.one_of(last)}"
    return f"{chance.one_of(TITLES)} {chance.one_of(last)}"


def time_phrase(chance, hour, minute):
    """How somebody says it, for 08:00 to 20:45."""
    half = "am" if hour < 12 else "pm"
    twelve = hour % 12 or 12
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 18 else "in the evening"
    ways = [f"{hour}:{minute:02}", f"{twelve}:{minute:02} {half}", f"{twelve}:{minute:02} {half}"]
    if minute == 0:
        ways += [f"{twelve} {half}"] * 2
        if hour == 12:
            ways += ["noon"] * 3
        else:
            ways += [f"{HOURS[twelve % 12]} {part}"]
    if minute == 30 and hour != 12:
        ways += [f"half past {HOURS[twelve % 12]} {part}"] * 2
    if minute == 15 and hour != 12:
        ways += [f"quarter past {HOURS[twelve % 12]} {part}"]
    return chance.one_of(ways)


def build(chance, n, part, frames, clauses, no_reminder, first, last):
    frame_deck = chance.deck(range(len(frames)), n)
    task_deck = chance.deck(list(TASKS), n)
    day_deck = chance.deck(DAYS, n)
    hour_deck = chance.deck(range(8, 21), n)
    minute_deck = chance.deck([0, 30, 0, 15, 30, 45], n)
    # 0: not spoken of, 1: refused or a plain thanks, else a clause
    remind_deck = chance.deck([2, 0, 2, 0, 2, 1, 2, 0], n)
    ahead_deck = chance.deck(AHEAD, n)
    rows = []
    for i in range(n):
        frame, task = frames[frame_deck[i]], task_deck[i]
        hour = chance.one_of(TIMES_OF_DAY[task]) if task in TIMES_OF_DAY else hour_deck[i]
        day, minute = day_deck[i], minute_deck[i]
        who = person(chance, first, last)
        nouns, verbs = TASKS[task]
        noun, verb = chance.one_of(nouns).format(who=who), chance.one_of(verbs).format(who=who)
        on_day = chance.one_of([f"on {day}", f"on {day}", f"next {day}", f"this {day}", f"this coming {day}"])
        time = time_phrase(chance, hour, minute)
        text = frame.format(noun=noun, verb=verb, on_day=on_day, day=day, at_time=f"at {time}", time=time)
        text = text[0].upper() + text[1:]
        clause, remind = "", 0
        if remind_deck[i] == 2:
            ahead, remind = ahead_deck[i]
            clause = chance.one_of(clauses).format(ahead=ahead)
        elif remind_deck[i] == 1:
            clause = chance.one_of(no_reminder)
        text = f"{text} {clause}".strip()
        answer = {"task": task, "who": who, "day": day[:3].lower(), "time": f"{hour:02}:{minute:02}", "remind": remind}
        slots = {"task": verb if "{verb}" in frame else noun, "day": on_day if "{on_day}" in frame else day,
                 "time": time, "clause": clause}
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": text},
            {"role": "assistant", "content": json.dumps(answer, separators=(",", ":"))},
        ]
        rows.append(({"messages": messages}, {"part": part, "row": i + 1, "frame": frame, "slots": slots}))
    return rows


def lines(values):
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def files():
    chance = Chance(SEED)
    train = build(chance, N_TRAIN, "train", TRAIN_FRAMES, TRAIN_CLAUSES, TRAIN_NO_REMINDER, TRAIN_FIRST, TRAIN_LAST)
    held_out = build(
        chance, N_HELD_OUT, "held-out", HELD_OUT_FRAMES, HELD_OUT_CLAUSES, HELD_OUT_NO_REMINDER, HELD_OUT_FIRST,
        HELD_OUT_LAST,
    )
    return {
        "train.jsonl": lines(example for example, _ in train),
        "held-out.jsonl": lines(example for example, _ in held_out),
        "instances.jsonl": lines(instance for _, instance in train + held_out),
    }


def main():
    folder = pathlib.Path(__file__).resolve().parent
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for name, text in files().items():
        path = folder / name
        if check:
            if not path.exists() or path.read_bytes() != text.encode():
                stale.append(name)
        else:
            path.write_bytes(text.encode())
    if stale:
        sys.exit(f"not what make.py writes: {', '.join(stale)}; run python3 {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
