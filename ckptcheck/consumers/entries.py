"""Matches the entries of an ignore, target or pattern list against the names of modules.

A list is read once: texts go into a table, patterns into one automaton. Every consumer has its own rule by which an entry
matches. Each ``parse_…`` function below is one such rule and names the consumers that have it. A fused module is looked up by the
shards that are separate in the checkpoint.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from ckptcheck.consumers.base import ConsumerError, SplitModuleError, UnknownBehavior
from ckptcheck.consumers.regex_set import UnsupportedRegex, compile_list

MAX_NAME = 1_000
"""Longest module name that is matched, in characters, because time grows with it; released models have up to some 100."""
ONLY_REGEX = re.compile(
    r"\\[pPXRhKGmML]|\\N\{|\[\[:|\(\?[|RV&bep]|\(\?\(DEFINE|\(\?\d|\{[eids]\s*(?:[<=,}]|\+)|\(\*|&&|.\(\?[a-zA-Z]+\)"
)
"""Syntax that `re` and the library `regex`, which vLLM and parts of SGLang use, interpret differently."""
FusedModules = Mapping[str, Sequence[str]]
"""Fused module → its shards."""
DENSE_MODULES: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""The fused modules that both engines assume if the model has no mapping for them (SGLang: `_FALLBACK_FUSED_SHARDS`)."""


class EntryMatcher(msgspec.Struct, frozen=True):
    """How one entry is matched: by `text`, by `pattern`, or by either."""

    text: str | None = None
    """The entry matches if this text is one of the keys of a name."""
    pattern: str | None = None
    """A regex."""
    error: str | None = None
    """What the consumer raises when it reaches this entry."""


ParseEntry = Callable[[str], EntryMatcher]
LookupKeys = Callable[[str], Iterable[str]]
"""Lists the texts that an entry for a name may have."""


class EntryUsage(msgspec.Struct):
    """What an entry matched, over all names so far."""

    count: int = 0
    examples: list[str] = msgspec.field(default_factory=list)
    """The first three names."""


class EntryList:
    """A list of a config as one consumer reads it."""

    def __init__(
        self,
        texts: Sequence[object],
        parse: ParseEntry,
        *,
        originals: Sequence[object] | None = None,
        keys: LookupKeys = lambda name: (name,),
        full: bool = False,
        like_regex: bool = False,
    ) -> None:
        """Read a list.

        Args:
            texts: the entries after the consumer's own renaming.
            parse: decides how an entry is matched.
            originals: each entry as the config has it, if `texts` are renamed.
            keys: lists the texts that an entry for a name may have.
            full: whether a pattern has to match the whole name, or only its beginning.
            like_regex: whether the consumer matches with the library `regex`, not with `re`.
        """
        self.originals = [str(text) for text in (texts if originals is None else originals)]
        self.usages = [EntryUsage() for _ in self.originals]
        self.texts = [text for text in texts if isinstance(text, str)]
        self._keys = keys
        self._texts: dict[str, list[int]] = {}
        self._errors: dict[int, str] = {}
        self._unknowns: dict[int, str] = {}
        patterns: dict[int, str] = {}
        for number, text in enumerate(texts):
            matcher = parse(text) if isinstance(text, str) else EntryMatcher(error=f"entry {text!r} is not a string")
            if matcher.pattern is not None:
                problem = _compile_error(matcher.pattern)
                if like_regex and ONLY_REGEX.search(matcher.pattern):
                    self._unknowns[number] = f"the regex library may read {text!r} in another way"
                elif problem:
                    self._errors[number] = f"{text!r} is not a regex ({problem})"
                else:
                    patterns[number] = matcher.pattern
            if matcher.text is not None:
                self._texts.setdefault(matcher.text, []).append(number)
            if matcher.error is not None:
                self._errors[number] = matcher.error
        self._automaton = compile_list(tuple(patterns.items()), full=full)
        self._unknowns.update(self._automaton.unsupported)

    def __len__(self) -> int:
        return len(self.originals)

    def original(self, number: int | None) -> str | None:
        """Return an entry as the config has it, None for None."""
        return None if number is None else self.originals[number]

    def match_all(self, name: str) -> list[int]:
        """Return the numbers of all entries that match a name, in the order of the list. Raises UnknownBehavior."""
        if len(name) > MAX_NAME:
            raise UnknownBehavior(f"the name has more than {MAX_NAME:,} characters")
        matches = {number for key in self._keys(name) for number in self._texts.get(key, ())} if self._texts else set()
        try:
            matches |= self._automaton.match(name)
        except UnsupportedRegex as reason:
            raise UnknownBehavior(str(reason)) from None
        for number in matches:
            usage = self.usages[number]
            usage.count += 1
            if len(usage.examples) < 3 and name not in usage.examples:
                usage.examples.append(name)
        return sorted(matches)

    def record_match(self, original: str) -> None:
        """Count a match that the consumer finds by other means than a name, such as the module's class."""
        self.usages[self.originals.index(original)].count += 1

    def first_match(self, name: str) -> int | None:
        """Return the first entry that matches, for a consumer that stops at the first match."""
        matches = self.match_all(name)
        number = matches[0] if matches else None
        self.check_entries_before(number)
        return number

    def all_matches(self, name: str) -> list[int]:
        """Return all entries that match, for a consumer that tries every entry."""
        self.check_entries_before(None)
        return self.match_all(name)

    def check_entries_before(self, number: int | None) -> None:
        """Raise the ConsumerError or UnknownBehavior of the first faulty entry before this number; None: of all entries."""
        for other in sorted({*self._errors, *self._unknowns}):
            if number is None or other < number:
                if other in self._errors:
                    raise ConsumerError(self._errors[other])
                raise UnknownBehavior(self._unknowns[other])


@lru_cache(maxsize=16_384)
def _compile_error(pattern: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return str(error)
    return None


def parse_exact_or_regex(text: str) -> EntryMatcher:
    """Read ``re:`` and a regex that matches a beginning, else the whole name: compressed-tensors, vLLM, Quark in both engines."""
    return EntryMatcher(pattern=text[3:]) if text.startswith("re:") else EntryMatcher(text=text)


def parse_regex_only(text: str) -> EntryMatcher:
    """Read ``re:`` and a regex; other entries match nothing: targets that both engines also match against the class."""
    return EntryMatcher(pattern=text[3:]) if text.startswith("re:") else EntryMatcher()


def parse_exact(text: str) -> EntryMatcher:
    """Read the text as it is; the list's `keys` decide where it matches. By default, the whole name: vLLM's fp8."""
    return EntryMatcher(text=text)


def list_lengths(texts: Sequence[object]) -> list[int]:
    """Return the lengths of these texts, because only parts of a name with one of these lengths can match."""
    return sorted({len(text) for text in texts if isinstance(text, str)})


def make_substring_keys(texts: Sequence[object]) -> LookupKeys:
    """Return keys that list every substring of a name with the length of one of these texts: AWQ, GPTQ and ModelOpt."""
    sizes = list_lengths(texts)
    return lambda name: {name[i : i + n] for n in sizes for i in range(len(name) - n + 1)}


def make_suffix_keys(texts: Sequence[object]) -> LookupKeys:
    """Return keys that list every end of a name with the length of one of these texts: transformers' skip lists."""
    sizes = list_lengths(texts)
    return lambda name: [name[len(name) - n :] for n in sizes if n <= len(name)]


def make_prefix_keys(texts: Sequence[object]) -> LookupKeys:
    """Return keys that list every beginning of a name with the length of one of these texts: slime."""
    sizes = list_lengths(texts)
    return lambda name: [name[:n] for n in sizes if n <= len(name)]


def parse_path(text: str) -> EntryMatcher:
    """Read a path of whole components that may stand anywhere in the name, see `split_component_runs`: SGLang's fp8."""
    return EntryMatcher(text=text.rstrip("."))


def split_dotted_suffixes(name: str) -> Iterable[str]:
    """Yield the name and its dotted suffixes: SGLang's compressed-tensors."""
    yield name
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def split_component_runs(name: str) -> Iterable[str]:
    """Return every run of whole components of a name."""
    parts = name.rstrip(".").split(".")
    return {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}


def parse_regex_or_suffix(text: str) -> EntryMatcher:
    """Read a regex that ends at a component's border, or the end of the name (see `make_suffix_keys`): transformers' skip lists.

    Source: `should_convert_module` of transformers 5.23, quantizers/quantizers_utils.py.
    """
    return EntryMatcher(text=text, pattern=rf"(?:{text})(?:(?<=\.)|(?=\.|$))")


def parse_regex_or_prefix(text: str) -> EntryMatcher:
    """Read ``re:`` and a regex, or a text that the name begins with (see `make_prefix_keys`): slime's INT4 packer."""
    return EntryMatcher(text=text, pattern=text[3:] if text.startswith("re:") else None)


def parse_fnmatch(text: str) -> EntryMatcher:
    """Read shell wildcards over the whole name, as `fnmatch` on a case-sensitive system: ModelOpt in vLLM."""
    # drop its atomic groups: they only save backtracking, and an automaton does not backtrack
    return EntryMatcher(pattern=fnmatch.translate(text).replace("(?>", "(?:"))


def parse_dotted_wildcard(text: str) -> EntryMatcher:
    """Read ``*`` as anything, dots as dots, the rest as a regex over the whole name (needs ``full``): ModelOpt in SGLang."""
    return EntryMatcher(pattern=text.replace(".", r"\.").replace("*", ".*"))


def expand_fused(name: str, fused: FusedModules) -> list[str] | None:
    """Return the names of the shards of a fused module, None for any other.

    Both engines replace *every* occurrence of the last component, so ``a.qkv_proj.qkv_proj`` goes wrong here as there.
    """
    last = name.rsplit(".", 1)[-1]
    return [name.replace(last, shard) for shard in fused[last]] if last in fused else None


def require_agreement(name: str, names: Sequence[str], decide: Callable[[str], int | None]) -> int | None:
    """Return the entry that decides on the first shard, None if none does. Raises SplitModuleError if shards disagree."""
    decided = [decide(shard) for shard in names]
    if len({entry is None for entry in decided}) > 1:
        listed = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is not None]
        others = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is None]
        raise SplitModuleError(
            f"the list matches {', '.join(listed)} of {name} but not {', '.join(others)}; "
            "the parts of a fused layer must match together"
        )
    return decided[0] if decided else None


def expand_by_suffix(name: str, fused: FusedModules) -> list[str] | None:
    """Return the names of the shards if the module's name ends in a fused name, at a dot or not: targets in both engines."""
    key = next((key for key in fused if name.endswith(key)), None)
    return [name.replace(key, shard) for shard in fused[key]] if key is not None else None


def find_skipped_by_vllm(entries: EntryList, name: str, fused: FusedModules, *, exact: bool) -> int | None:
    """Return the entry by which vLLM's `is_layer_skipped` is true. exact: its mode for fp8 and ModelOpt, else AWQ's."""
    direct = entries.first_match(name)
    names = expand_fused(name, fused)
    if names is not None:
        return direct if direct is not None else require_agreement(name, names, entries.first_match)
    if exact and "experts" in name:
        return next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return direct


def find_skipped_by_sglang(entries: EntryList, name: str, fused: FusedModules) -> int | None:
    """Return the entry by which SGLang's `is_layer_skipped` is true."""
    last = name.rsplit(".", 1)[-1]
    mapping = fused if last in fused else DENSE_MODULES
    names = expand_fused(name, mapping)
    if names is not None:
        return require_agreement(name, names, entries.first_match)
    hit = entries.first_match(name)
    if "gate_up_proj" in name:
        both = [name.replace("gate_up_proj", shard) for shard in ("gate_proj", "up_proj")]
        if hit is None and all(each in entries.texts for each in both):
            hit = entries.texts.index(both[0])
    elif "experts" in name and hit is None:
        hit = next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return hit
