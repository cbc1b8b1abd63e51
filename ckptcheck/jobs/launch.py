"""Reads the settings in the words of a launch line: Hydra's overrides ``a.b=c`` and flags ``--a-b c``."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.document import Document, Leaf, Refusal
from ckptcheck.jobs.framework import find_closest_name
from ckptcheck.jobs.hydra.override import Override, parse_override
from ckptcheck.jobs.hydra.value_grammar import GrammarError
from ckptcheck.jobs.interpolation import count_values, resolve
from ckptcheck.jobs.key_names import is_slip
from ckptcheck.jobs.shell.word import MARK, Word
from ckptcheck.jobs.yaml_file import parse_scalar

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.@/\-]*)=(.*)", re.DOTALL)
REMOVAL = re.compile(r"(~)([A-Za-z_][\w.@/\-]*)")
LONGEST = 20_000
"""Characters of an override that is still read."""
FLAG = re.compile(r"--?[A-Za-z]")


def apply_overrides(words: Sequence[Word], into: Document, file: str | None) -> list[Word]:
    """Apply Hydra's overrides (``a.b=c``, ``+a.b=c``, ``++a.b=c``, ``~a.b``) to a document; return the other words.

    file: that of words which name none themselves; None for the command line of ckptcheck.
    """
    overrides, rest = parse_overrides(words, into, file)
    apply_parsed_overrides(overrides, into)
    return rest


def parse_overrides(
    words: Sequence[Word], into: Document, file: str | None
) -> tuple[list[tuple[Override, Leaf]], list[Word]]:
    """Split words into overrides, each with its place, and others.

    An override that Hydra's grammar refuses is added to the document's refusals, and read as far as it is understood.
    """
    overrides: list[tuple[Override, Leaf]] = []
    rest = []
    for word in words:
        match = OVERRIDE.fullmatch(word.text) or REMOVAL.fullmatch(word.text)
        if match is None:
            rest.append(word)
            continue
        kind, key = match[1], match[2]
        if len(word.text) > LONGEST:
            word = replace(word, text=f"{kind}{key}=", reason=f"it has more than {LONGEST:,} characters")
        place = Leaf(None, key, word.file or file, word.line or None, word.reason)
        try:
            # The shell has replaced a ~ by the home before Hydra reads it.
            override = parse_override(word.text.replace("=~/", "=/", 1))
            if "=~/" in word.text and isinstance(override.value, str):
                override = replace(override, value=f"~{override.value}")
        except GrammarError as error:
            value = parse_override_value(match[3] if kind != "~" and len(match.groups()) > 2 else "")
            override = Override(kind, key, None, value)  # type: ignore[arg-type]
            if not word.reason and (kind or "." in key):
                into.refusals.append(Refusal(place, f"{clip(word.text, 80)}: {error}"))
        if word.reason or override.reason:
            override = replace(override, reason=word.reason or override.reason)
        overrides.append((override, replace(place, value=override.value, reason=override.reason)))
    return overrides, rest


def apply_parsed_overrides(overrides: Sequence[tuple[Override, Leaf]], into: Document) -> None:
    """Apply overrides that set values, as Hydra does: a dict is merged, anything else replaces what was there.

    Where the document is composed, an override that Hydra refuses is added to its refusals.
    """
    unparsed = {(refusal.leaf.key, refusal.leaf.file, refusal.leaf.line) for refusal in into.refusals}
    for override, leaf in overrides:
        key = override.key
        if key.startswith(("hydra.", "hydra/")):
            continue
        if (leaf.key, leaf.file, leaf.line) in unparsed:
            # Hydra stops at its grammar, before it looks for the key.
            pass
        elif into.is_composed and not override.reason:
            if missing := _find_missing_key(override, into):
                near = _find_near_key(missing, into)
                into.refusals.append(
                    Refusal(leaf, f"the configuration has no key {missing}", missing=missing, near=near)
                )
            elif why := _find_refusal(override, into):
                into.refusals.append(Refusal(leaf, why))
        # A key of the job's own file is there.
        elif not (override.kind or override.reason or override.package) and (
            key in into.plain_overrides or not into.has(key)
        ):
            into.plain_overrides[key] = leaf
        if override.kind == "~":
            _remove(key, into, leaf)
        elif override.is_sweep:
            into.put(key, replace(leaf, value=None, reason="a sweep sets it"))
        elif not override.reason and _replace_item(key, override.value, into):
            continue
        else:
            into.put_value(key, leaf)


def _find_missing_key(override: Override, document: Document) -> str:
    """Return the key that an override changes and a composed configuration does not have, "" where there is none."""
    key = override.key
    if override.kind or override.package is not None or (override.is_sweep and not document.has_sweeps):
        return ""
    if not document.has(key) and not _has_item(key, document):
        return key
    if isinstance(override.value, dict) and document.has_section(key):
        return next((path for path in list_paths(override.value, key) if not document.has(path)), "")
    return ""


def _find_near_key(missing: str, document: Document) -> str:
    """Return the key of a document that a missing one is almost, but for a letter or two in one of its parts; "" for none."""
    parts = missing.split(".")
    for number, part in enumerate(parts):
        section = ".".join(parts[:number])
        if document.has(".".join(parts[: number + 1])):
            continue
        near = find_closest_name(part, frozenset(document.keys_of(section)))
        meant = ".".join([*parts[:number], near, *parts[number + 1 :]])
        return meant if near and is_slip(part, near) and document.has(meant) else ""
    return ""


def _find_refusal(override: Override, document: Document) -> str:
    """Return why Hydra refuses to set a value in a composed configuration, "" where it does not."""
    key, written = override.key, clip(override.key, 120)
    if override.is_sweep and not document.has_sweeps:
        return f"{written} is given several values, which Hydra takes with --multirun only"
    if override.package is not None:
        return f"{written} is no config group"
    exists = document.has(key) or _has_item(key, document)
    current = resolve(document, key) if exists else None
    is_empty = not exists or (current is not None and current.value is None)
    if override.kind == "+" and not is_empty and not isinstance(override.value, (dict, list)):
        return f"the configuration has the key {written} already, which Hydra refuses after +"
    if override.kind == "~" and is_empty:
        return f"the configuration has no {written} that could be removed"
    if override.kind == "~" and override.value is not None and current is not None and current.value != override.value:
        return f"{written} is {clip(str(current.value), 20)}, and ~ names {clip(str(override.value), 20)}"
    return ""


def _remove(key: str, document: Document, place: Leaf) -> None:
    """Remove a key. A section that loses its last key stays, empty. place: of the override."""
    section = key.rpartition(".")[0]
    document.remove(key)
    if section and not document.has(section):
        document.put(section, replace(place, value={}))


def _replace_item(key: str, value: object, document: Document) -> bool:
    """Replace an item of a list (``a.0=1``). Returns whether the key is one, of a list or of a dict in it."""
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:length])
        leaf = document.leaves.get(section)
        if leaf is None or not isinstance(leaf.value, (list, dict)):
            continue
        document.budget.spend(count_values(leaf.value), clip(key, 60))
        whole = copy.deepcopy(leaf.value)
        inner: object = whole
        for name in parts[length:-1]:
            inner = _item(inner, name)
        if isinstance(inner, list) and parts[-1].isdigit() and int(parts[-1]) < len(inner):
            inner[int(parts[-1])] = value
        elif isinstance(inner, dict) and inner:
            inner[parts[-1]] = value
        else:
            return False
        document.put(section, replace(leaf, value=whole))
        return True
    return False


def _has_item(key: str, document: Document) -> bool:
    """Return whether a key lies in a list: ``a.0``."""
    document.budget.spend(1 + len(document.leaves) // 20, clip(key, 60))
    return any(
        isinstance(leaf.value, list) and key.startswith(f"{path}.") and resolve(document, key) is not None
        for path, leaf in document.leaves.items()
    )


def list_paths(values: Mapping[object, object], section: str) -> list[str]:
    """Return the paths of the values of a dict, and of those in it. section: the path of the dict."""
    paths = []
    for name, value in values.items():
        path = f"{section}.{name}"
        paths += list_paths(value, path) if isinstance(value, dict) and value else [path]
    return paths


def _item(value: object, name: str) -> object:
    """Return an item of a list or a dict by its name, None where there is none."""
    if isinstance(value, list):
        return value[int(name)] if name.isdigit() and int(name) < len(value) else None
    return value.get(name) if isinstance(value, dict) else None


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
                marked = word.with_marks.partition("=")[2].strip("'\"")
                return replace(word, text=value.strip("'\""), marked=marked if MARK in marked else "")
            return words[index + 1] if index + 1 < len(words) else None
    return None
