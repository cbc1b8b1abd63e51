"""Reads JSON that other programs wrote, and explains errors in ckptcheck's words instead of the parser's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeVar

import msgspec

from ckptcheck.checkpoint.document import clip

T = TypeVar("T")
PIECE = 1 << 20
"""Bytes that are read at a time."""
MOST_LINE = 1 << 30
"""Bytes of the longest line that is read: a sequence of 128,000 tokens with the experts of 60 layers has 300 MB."""
KINDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
         "object": "an object", "null": "null"}  # fmt: skip


class NotJSON(ValueError):
    """The text is not JSON. The message is a sentence without its full stop."""


class WrongType(ValueError):
    """A JSON value does not have the required type. The message is a sentence without its full stop."""


def read_text_lines(file: BinaryIO, most: int = MOST_LINE) -> Iterator[bytes]:
    """Yield the lines of a text file. Raises NotJSON for a line of more than `most` bytes, and at a zero byte, which no JSON has.

    A file may have gigabytes of zeros that take no room on the disk; they are not read.
    """
    while line := b"".join(read_text(file, most, one_line=True)):
        yield line


def read_text(file: BinaryIO, most: int, *, one_line: bool = False) -> Iterator[bytes]:
    """Yield a text file in pieces, or its next line. Raises NotJSON beyond `most` bytes, and at a zero byte."""
    length = 0
    while piece := (file.readline if one_line else file.read)(PIECE):
        length += len(piece)
        if b"\0" in piece:
            raise NotJSON("it holds a byte that is zero, which no text does")
        if length > most:
            raise NotJSON(f"{'a line' if one_line else 'it'} has more than {most:,} bytes")
        yield piece
        if one_line and piece.endswith(b"\n"):
            return


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON text, in which NaN and Infinity are allowed, as Python writes them. Raises NotJSON."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise NotJSON(str(error)) from error
    except UnicodeError as error:
        raise NotJSON("it is not UTF-8") from error
    except RecursionError as error:
        raise NotJSON("it is nested too deeply") from error
    # the only other ValueError: int() accepts at most 4,300 digits
    except ValueError as error:
        raise NotJSON("a number in it has thousands of digits") from error


def convert_json(content: object, kind: type[T]) -> T:
    """Return a loaded JSON value as an instance of a type. Raises WrongType."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise WrongType(describe_validation_error(error)) from error
    except RecursionError as error:
        raise WrongType("it is nested too deeply") from error
    except UnicodeError as error:
        raise WrongType("a text in it has half a surrogate pair") from error


def describe_validation_error(error: msgspec.ValidationError) -> str:
    """Return a sentence on what is wrong with a value, and where it is.

    >>> describe_validation_error(msgspec.ValidationError("Expected `int`, got `str` - at `$.tokens[1]`"))
    'tokens[1] is text, and a whole number is expected'
    >>> describe_validation_error(msgspec.ValidationError("Object missing required field `tokens`"))
    'it has no tokens'
    """
    message, _, where = str(error).partition(" - at ")
    place = where.strip("`").removeprefix("$").removeprefix(".") or "it"
    if match := re.fullmatch(r"Expected `(.*)`, got `(.*)`", message):
        expected, actual = (
            " or ".join(KINDS.get(kind, kind) for kind in names.split(" | ")) for names in match.groups()
        )
        return f"{place} is {actual}, and {expected} is expected"
    if match := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"{place} has no {match[1]}"
    if match := re.fullmatch(r"Invalid enum value (.*)", message, re.DOTALL):
        return f"{place} is {clip(match[1], 40)}, which is none of what it may be"
    if match := re.fullmatch(r"Expected `(.*)` ([<>]=) (.*)", message):
        return f"{place} is {'above' if match[2] == '<=' else 'below'} {int(match[3]):,}"
    if match := re.fullmatch(r"Expected `array` of (?:at least )?length (\d+).*", message):
        return f"{place} is no list of {match[1]}"
    return f"{place} cannot be read: {message[:1].lower()}{clip(message[1:])}"


def to_printable(text: object) -> str:
    """Return a text with question marks for halves of surrogate pairs, which cannot be written to a file."""
    return str(text).encode(errors="replace").decode()
