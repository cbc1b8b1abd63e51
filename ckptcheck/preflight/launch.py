"""Turns the words of a launch line into a document, in the three ways in which frameworks take settings there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.shell import Word
from ckptcheck.preflight.yaml_file import scalar

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.@/\-]*)=(.*)", re.DOTALL)
REMOVAL = re.compile(r"~([A-Za-z_][\w.@/\-]*)")
FLAG = re.compile(r"--?[A-Za-z]")


def overrides(words: Sequence[Word], into: Document, file: str | None) -> list[Word]:
    """Apply Hydra's overrides (``a.b=c``, ``+a.b=c``, ``++a.b=c``, ``~a.b``) to a document; return the other words."""
    rest = []
    for word in words:
        found = OVERRIDE.fullmatch(word.text)
        removed = REMOVAL.fullmatch(word.text)
        line = word.line or None
        if removed or (found and found[1] == "~"):
            into.remove((removed or found)[1 if removed else 2])  # type: ignore[index]
        elif found:
            into.put(found[2], Leaf(unquoted(found[3]), found[2], word.file or file, line, word.reason))
        else:
            rest.append(word)
    return rest


def unquoted(text: str) -> object:
    """A value of Hydra: quotes keep a text what it is."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return scalar(text) if text else ""


def flags(
    words: Sequence[Word], into: Document, file: str | None, *, prefix: str = "", short: dict[str, str] | None = None
) -> list[Word]:
    """Put ``--some-flag value`` as the leaf some_flag; return the words before the first flag.

    An option without a value is True; one with several has a list. A negative number is a value.
    """
    first: list[Word] = []
    name: str | None = None
    written, place = "", Word("", 0)
    values: list[Word] = []

    def close() -> None:
        if name is None:
            return
        why = place.reason or next((word.reason for word in values if word.reason), "")
        texts: list[object] = [scalar(word.text) for word in values]
        value: object = True if not texts else texts[0] if len(texts) == 1 else texts
        into.put(prefix + name, Leaf(value, written, place.file or file, place.line or None, why))

    for word in words:
        alias = (short or {}).get(word.text)
        if alias is None and not (FLAG.match(word.text) and (word.text.startswith("--") or not short)):
            (values if name is not None else first).append(word)
            continue
        close()
        values = []
        written, equals, value = word.text.partition("=")
        name = alias or written.lstrip("-").replace("-", "_")
        place = word
        if equals:
            values.append(Word(value, word.line))
    close()
    return first


def option(words: Sequence[Word], *names: str) -> Word | None:
    """The value of an option that is given once: ``--config FILE`` or ``--config=FILE``."""
    for at, word in enumerate(words):
        text, equals, value = word.text.partition("=")
        if text in names:
            if equals:
                return Word(value.strip("'\""), word.line, word.reason)
            return words[at + 1] if at + 1 < len(words) else None
    return None
