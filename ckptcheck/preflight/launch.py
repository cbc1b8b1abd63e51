"""Reads the settings in the words of a launch line: Hydra's overrides ``a.b=c`` and flags ``--a-b c``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.shell_script import Word
from ckptcheck.preflight.yaml_file import parse_scalar

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.@/\-]*)=(.*)", re.DOTALL)
REMOVAL = re.compile(r"~([A-Za-z_][\w.@/\-]*)")
FLAG = re.compile(r"--?[A-Za-z]")


def apply_overrides(words: Sequence[Word], into: Document, file: str | None) -> list[Word]:
    """Apply Hydra's overrides (``a.b=c``, ``+a.b=c``, ``++a.b=c``, ``~a.b``) to a document; return the other words."""
    rest = []
    for word in words:
        override = OVERRIDE.fullmatch(word.text)
        removal = REMOVAL.fullmatch(word.text)
        line = word.line or None
        if removal:
            into.remove(removal[1])
        elif override and override[1] == "~":
            into.remove(override[2])
        elif override:
            key, text = override[2], override[3]
            into.put(key, Leaf(parse_override_value(text), key, word.file or file, line, word.reason))
        else:
            rest.append(word)
    return rest


def parse_override_value(text: str) -> object:
    """Parse the value of an override as Hydra does: a quoted value stays text."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return parse_scalar(text) if text else ""


def flags(
    words: Sequence[Word], into: Document, file: str | None, *, prefix: str = "", short: dict[str, str] | None = None
) -> list[Word]:
    """Put each ``--some-flag value`` into a document as the leaf some_flag; return the words before the first flag.

    A flag without a value is True; one with several values has a list. A negative number is a value, not a flag.

    Args:
        words: The words after the program's name.
        into: The document that gets the leaves.
        file: The file of words that name none themselves.
        prefix: Put before every leaf's name.
        short: Short option → name of its leaf. Where it is given, no other word with a single dash is a flag.
    """
    positional: list[Word] = []
    name: str | None = None
    written, place = "", Word("", 0)
    values: list[Word] = []

    def put_flag() -> None:
        if name is None:
            return
        reason = place.reason or next((word.reason for word in values if word.reason), "")
        texts: list[object] = [parse_scalar(word.text) for word in values]
        value: object = True if not texts else texts[0] if len(texts) == 1 else texts
        into.put(prefix + name, Leaf(value, written, place.file or file, place.line or None, reason))

    for word in words:
        alias = (short or {}).get(word.text)
        if alias is None and not (FLAG.match(word.text) and (word.text.startswith("--") or not short)):
            (values if name is not None else positional).append(word)
            continue
        put_flag()
        values = []
        written, equals, value = word.text.partition("=")
        name = alias or written.lstrip("-").replace("-", "_")
        place = word
        if equals:
            values.append(Word(value, word.line))
    put_flag()
    return positional


def option(words: Sequence[Word], *names: str) -> Word | None:
    """Return the value of an option: ``--config FILE`` or ``--config=FILE``; None where the words do not have the option."""
    for index, word in enumerate(words):
        text, equals, value = word.text.partition("=")
        if text in names:
            if equals:
                return Word(value.strip("'\""), word.line, word.reason)
            return words[index + 1] if index + 1 < len(words) else None
    return None
