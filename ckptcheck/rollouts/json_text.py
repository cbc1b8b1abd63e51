"""Reads JSON that others wrote. What is wrong with it is said in words of its own, not in those of a parser."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from ckptcheck.checkpoint.document import clipped

T = TypeVar("T")
KINDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
         "object": "an object", "null": "null"}  # fmt: skip


class NotJson(ValueError):
    """The text is no JSON. The message is a sentence without its full stop."""


class Unlike(ValueError):
    """What a text holds is not what it should be. The message is a sentence without its full stop."""


def loaded(raw: bytes) -> Any:
    """Return what a text holds; NaN and Infinity are understood, as Python writes them. Raises NotJson."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise NotJson(str(error)) from error
    except UnicodeError as error:
        raise NotJson("it is not UTF-8") from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except ValueError as error:  # the only other one: int() takes 4,300 digits
        raise NotJson("a number in it has thousands of digits") from error


def converted(content: object, kind: type[T]) -> T:
    """Return what was loaded as what it should be. Raises Unlike."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise Unlike(reason(error)) from error
    except RecursionError as error:
        raise Unlike("it is nested too deeply") from error
    except UnicodeError as error:
        raise Unlike("a text in it has half a surrogate pair") from error


def reason(error: msgspec.ValidationError) -> str:
    """Say what is not as it should be, and where.

    >>> reason(msgspec.ValidationError("Expected `int`, got `str` - at `$.tokens[1]`"))
    'tokens[1] is text, and a whole number is due'
    >>> reason(msgspec.ValidationError("Object missing required field `tokens`"))
    'it has no tokens'
    """
    said, _, where = str(error).partition(" - at ")
    place = where.strip("`").removeprefix("$").removeprefix(".") or "it"
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", said):
        due, given = (" or ".join(KINDS.get(kind, kind) for kind in names.split(" | ")) for names in found.groups())
        return f"{place} is {given}, and {due} is due"
    if found := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{place} has no {found[1]}"
    if found := re.fullmatch(r"Invalid enum value (.*)", said, re.DOTALL):
        return f"{place} is {clipped(found[1], 40)}, which is none of what it may be"
    if found := re.fullmatch(r"Expected `(.*)` ([<>]=) (.*)", said):
        return f"{place} is {'above' if found[2] == '<=' else 'below'} {int(found[3]):,}"
    if found := re.fullmatch(r"Expected `array` of (?:at least )?length (\d+).*", said):
        return f"{place} is no list of {found[1]}"
    return f"{place} cannot be read: {said[:1].lower()}{clipped(said[1:])}"


def word(text: object) -> str:
    """Return a word of a file; halves of surrogate pairs, which no file can be written with, become question marks."""
    return str(text).encode(errors="replace").decode()
