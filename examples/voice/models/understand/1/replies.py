"""What to say: a template for each intent, filled in with what the sentence names."""

import operator
import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

ZONES = {
    "Berlin": "Europe/Berlin",
    "London": "Europe/London",
    "New York": "America/New_York",
    "Paris": "Europe/Paris",
    "Rome": "Europe/Rome",
    "Tokyo": "Asia/Tokyo",
}
SKIES = ("sunny", "cloudy", "rainy")
THINGS = ("light", "lamp", "heating", "radio", "fan")
ROOMS = ("kitchen", "bedroom", "bathroom", "living room", "hall")
ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: number for number, word in enumerate(ONES.split())} | {
    word: 10 * number for number, word in enumerate(TENS.split(), 2)
}
"""Most are heard as digits, but not all."""
OPERATORS = {
    "plus": operator.add,
    "minus": operator.sub,
    "times": operator.mul,
    "divided by": operator.truediv,
}
SIGNS = {"+": "plus", "-": "minus", "x": "times", "*": "times", "/": "divided by"}
NUMBER = rf"(\d+|\b(?:{'|'.join(NUMBERS)})\b)"
SUM = re.compile(rf"{NUMBER}\s*({'|'.join(map(re.escape, (*OPERATORS, *SIGNS)))})\s*{NUMBER}", re.IGNORECASE)


def reply_to(intent: str, heard: str, now: datetime) -> str:
    """Return one sentence. ``now`` has a time zone; it is the time where no place is named."""
    reply = REPLIES.get(intent)
    return (reply(heard, now) if reply else None) or "Sorry, I did not understand that."


def tell_time(heard: str, now: datetime) -> str:
    place = place_in(heard)
    if place is None:
        return f"It is {now:%H:%M}."
    if place not in ZONES:
        return f"Sorry, I do not know what time it is in {place}."
    return f"It is {now.astimezone(ZoneInfo(ZONES[place])):%H:%M} in {place}."


def tell_weather(heard: str, now: datetime) -> str:
    """Invent the weather: whoever has a weather service asks it here."""
    place = place_in(heard) or "Paris"
    number = now.astimezone(UTC).toordinal() + sum(map(ord, place))
    return f"In {place} it is {SKIES[number % len(SKIES)]}, with {8 + number % 17} degrees."


def place_in(heard: str) -> str | None:
    """Return a place that is known, or one that only looks like a place."""
    known = named_in(heard, ZONES)
    found = re.search(r"\bin ([A-Z]\w+(?: [A-Z]\w+)*)", heard)
    return known or (found[1] if found else None)


def calculate(heard: str, _: datetime) -> str | None:
    found = SUM.search(heard)
    if not found:
        return None
    left, right = number_of(found[1]), number_of(found[3])
    sign = SIGNS.get(found[2].lower(), found[2].lower())
    if sign == "divided by" and right == 0:
        return "Nothing can be divided by 0."
    return f"{left} {sign} {right} is {round(OPERATORS[sign](left, right), 2):.15g}."


def number_of(text: str) -> int:
    return int(text) if text.isdecimal() else NUMBERS[text.lower()]


def switch(heard: str, _: datetime) -> str | None:
    thing, room = named_in(heard, THINGS), named_in(heard, ROOMS)
    direction = named_in(heard, ("on", "off"))
    if not thing or not direction:
        return None
    return f"I have turned {direction} the {thing}{f' in the {room}' if room else ''}."


def named_in(heard: str, names) -> str | None:
    """Return the first of the names that the sentence has as words of their own, one or several."""
    return next((name for name in names if re.search(rf"\b{name}s?\b", heard, re.IGNORECASE)), None)


REPLIES = {
    "time": tell_time,
    "weather": tell_weather,
    "sum": calculate,
    "switch": switch,
    "greeting": lambda *_: "Hello, what can I do for you?",
    "thanks": lambda *_: "You are welcome.",
}
