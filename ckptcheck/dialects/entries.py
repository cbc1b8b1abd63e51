"""The entries of one ignore, target or pattern list, and which of them match a name.

A list is read once: plain entries go into tables, patterns into one automaton. Every consumer has its own idea of when
an entry matches; those ideas are the functions `equal_or_regex` … `glob` below, each with the consumers that have it.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ckptcheck.dialects.automaton import Automaton
from ckptcheck.dialects.base import Refused, Unknown
from ckptcheck.dialects.unfold import Undecided

MAX_NAME = 1_000
"""Characters of a module's name."""
ONLY_REGEX = re.compile(
    r"\\[pPXRhKGmML]|\\N\{|\[\[:|\(\?[|RV&bep]|\(\?\(DEFINE|\(\?\d|\{[eids]\s*(?:[<=,}]|\+)|\(\*|&&|.\(\?[a-zA-Z]+\)"
)
"""What the third-party `regex`, which vLLM and parts of SGLang use, reads differently from `re`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one entry is matched. plain: text to look up. pattern: a regex. broken: what the consumer raises on."""

    plain: str | None = None
    pattern: str | None = None
    broken: str | None = None


Reading = Callable[[str], Rule]
Keys = Callable[[str], Iterable[str]]


@dataclass
class Use:
    """What an entry matched, over all names that were asked. examples: the first names."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


class Entries:
    """A list as one consumer reads it.

    texts: the entries after the consumer's own renaming, those of a wrong type left out. written: what each stood as in the
    config. reading: how an entry is matched. keys: the texts under which a plain entry would be found for a name.
    like_regex: the consumer matches with `regex`, not `re`.
    """

    def __init__(
        self,
        texts: Sequence[object],
        reading: Reading,
        *,
        written: Sequence[object] | None = None,
        keys: Keys = lambda name: (name,),
        full: bool = False,
        like_regex: bool = False,
    ) -> None:
        self.written = [str(text) for text in (texts if written is None else written)]
        self.uses = [Use() for _ in self.written]
        self.texts = [text for text in texts if isinstance(text, str)]
        self._keys = keys
        self._plain: dict[str, list[int]] = {}
        self._broken: dict[int, str] = {}
        self._unknown: dict[int, str] = {}
        patterns: dict[int, str] = {}
        for number, text in enumerate(texts):
            rule = reading(text) if isinstance(text, str) else Rule(broken=f"entry {text!r} is not a string")
            if rule.pattern is not None:
                trouble = _invalid(rule.pattern)
                if like_regex and ONLY_REGEX.search(rule.pattern):
                    self._unknown[number] = f"the regex library may read {text!r} in another way"
                elif trouble:
                    self._broken[number] = f"{text!r} is not a regex ({trouble})"
                else:
                    patterns[number] = rule.pattern
            if rule.plain is not None:
                self._plain.setdefault(rule.plain, []).append(number)
            if rule.broken is not None:
                self._broken[number] = rule.broken
        self._automaton = Automaton(patterns, full=full)
        self._unknown.update(self._automaton.unfit)

    def __len__(self) -> int:
        return len(self.written)

    def hits(self, name: str) -> list[int]:
        """Return the numbers of all entries that match a name, in the order of the list."""
        if len(name) > MAX_NAME:
            raise Unknown(f"the name has more than {MAX_NAME:,} characters")
        found = {number for key in self._keys(name) for number in self._plain.get(key, ())} if self._plain else set()
        try:
            found |= self._automaton.match(name)
        except Undecided as reason:
            raise Unknown(str(reason)) from None
        for number in found:
            use = self.uses[number]
            use.count += 1
            if len(use.examples) < 3 and name not in use.examples:
                use.examples.append(name)
        return sorted(found)

    def met(self, written: str) -> None:
        """Count a match that was found by other means than a name, such as the class."""
        self.uses[self.written.index(written)].count += 1

    def first(self, name: str) -> int | None:
        """Return the first entry that matches, as a consumer does that tries one after the other."""
        found = self.hits(name)
        number = found[0] if found else None
        self.until(number)
        return number

    def all(self, name: str) -> list[int]:
        """Return all entries that match, as a consumer does that tries every one."""
        self.until(None)
        return self.hits(name)

    def until(self, number: int | None) -> None:
        """Raise Refused or Unknown for what a consumer meets that tries the entries up to one, None for all."""
        for other in sorted({*self._broken, *self._unknown}):
            if number is None or other < number:
                if other in self._broken:
                    raise Refused(self._broken[other])
                raise Unknown(self._unknown[other])


def _invalid(pattern: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return str(error)
    return None


def equal_or_regex(text: str) -> Rule:
    """``re:`` and a regex from the beginning, else the whole name: compressed-tensors, vLLM, Quark in both engines."""
    return Rule(pattern=text[3:]) if text.startswith("re:") else Rule(plain=text)


def equal(text: str) -> Rule:
    """The text itself: vLLM's fp8; with other `keys`, wherever they say."""
    return Rule(plain=text)


def lengths(texts: Sequence[object]) -> list[int]:
    """Return the lengths of these texts, the only ones at which a piece of a name could be one of them."""
    return sorted({len(text) for text in texts if isinstance(text, str)})


def pieces(texts: Sequence[object]) -> Keys:
    """Return what lists the pieces of a name that these texts could be: AWQ, GPTQ and ModelOpt look for substrings."""
    sizes = lengths(texts)
    return lambda name: {name[i : i + n] for n in sizes for i in range(len(name) - n + 1)}


def endings(texts: Sequence[object]) -> Keys:
    """Return what lists the ends of a name that these texts could be, the empty one too: transformers' skip lists."""
    sizes = lengths(texts)
    return lambda name: [name[len(name) - n :] for n in sizes if n <= len(name)]


def beginnings(texts: Sequence[object]) -> Keys:
    """Return what lists the beginnings of a name that these texts could be, the empty one too: slime."""
    sizes = lengths(texts)
    return lambda name: [name[:n] for n in sizes if n <= len(name)]


def within(text: str) -> Rule:
    """A path of whole components anywhere in the name, see `paths`: SGLang's fp8."""
    return Rule(plain=text.rstrip("."))


def suffixes(name: str) -> Iterable[str]:
    """Return the name and its dotted suffixes: SGLang's compressed-tensors."""
    yield name
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def paths(name: str) -> Iterable[str]:
    """Return every run of whole components of a name."""
    parts = name.rstrip(".").split(".")
    return {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}


def module_or_suffix(text: str) -> Rule:
    """A regex that ends at a component's border, or the end of the name (see `endings`): transformers' skip lists.

    Source: `should_convert_module` of transformers 5.23, quantizers/quantizers_utils.py.
    """
    return Rule(plain=text, pattern=rf"(?:{text})(?:(?<=\.)|(?=\.|$))")


def regex_or_beginning(text: str) -> Rule:
    """``re:`` and a regex, or a text that the name begins with (see `beginnings`): slime's INT4 packer."""
    return Rule(plain=text, pattern=text[3:] if text.startswith("re:") else None)


def glob(text: str) -> Rule:
    """Shell wildcards over the whole name, as `fnmatch` on a case-sensitive system: ModelOpt in vLLM."""
    # its atomic groups only save backtracking, of which an automaton has none
    return Rule(pattern=fnmatch.translate(text).replace("(?>", "(?:"))


def dotted_glob(text: str) -> Rule:
    """Dots escaped, ``*`` for anything, the rest a regex over the whole name (needs ``full``): ModelOpt in SGLang."""
    return Rule(pattern=text.replace(".", r"\.").replace("*", ".*"))
