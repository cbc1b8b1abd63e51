"""Reads the tokens of a tokenizer and numbers them as the library `tokenizers` does.

Formats: tokenizers 0.23 (models BPE, WordPiece, WordLevel, Unigram; `added_vocabulary.rs`); vocab.json of GPT-2 and
vocab.txt of BERT as their slow tokenizers in transformers read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.sandbox import run_sandboxed
from ckptcheck.checkpoint.source import Source, read_document

MOST_BYTES = 1 << 27
"""Longest tokenizer.json that is read, in bytes; Gemma 3's has 33 MB."""
HIGHEST = 2**32 - 1
"""The highest id: `tokenizers` stores ids in 32 bits."""
LOADING_SECONDS, LOADING_MEMORY = 60, 1 << 32
"""Limits for loading a file with `tokenizers`: seconds of processor time, bytes of memory. Gemma's takes two seconds."""
FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
"""Files with tokens and ids, most complete first."""


@dataclass(frozen=True)
class AddedToken:
    """A token that the tokenizer matches before the model splits the text."""

    content: str
    id: int
    special: bool


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one file."""

    file: str
    model: dict[str, int] = field(default_factory=dict, repr=False)
    """Token → id, for the tokens of the model itself."""
    rows: int = 0
    """Number of tokens that the model counts."""
    added: tuple[AddedToken, ...] = ()
    defects: tuple[Defect, ...] = ()
    readable: bool = False
    """Whether the file gives every token an id."""
    kind: str | None = None
    """The kind of model that the file names: BPE, Unigram, WordPiece, WordLevel."""
    post_processor_tokens: frozenset[str] = frozenset()
    """The strings of the post-processor, which include the tokens that it adds around every text."""
    is_byte_level: bool = False
    """Whether a step of tokenizer.json works on bytes (`ByteLevel`)."""
    steps: dict[str, Any] = field(default_factory=dict, repr=False)
    """The `normalizer` and the `pre_tokenizer` of tokenizer.json, and the settings of its model (`model`)."""

    @cached_property
    def ids(self) -> dict[str, int]:
        """Every token → its id."""
        return self.model | {token.content: token.id for token in self.added}

    @cached_property
    def id_to_token(self) -> dict[int, str]:
        """Every id → its token; an added token takes precedence over one of the model."""
        own = {number: token for token, number in self.model.items()}
        return own | {token.id: token.content for token in self.added}

    def with_tokens(self, wanted: Iterable[tuple[str, bool]]) -> Vocabulary:
        """Return the vocabulary with further added tokens (content, special), numbered as `tokenizers` numbers them."""
        return replace(self, added=_numbered(wanted, self))


def read_vocabulary(source: Source, file: str) -> Vocabulary:
    """Read one of FILES. Raises OSError if the file cannot be read."""
    size = source.files[file].size
    if size > MOST_BYTES:
        return Vocabulary(file, defects=(Defect("too-long", f"it has {size:,} bytes; no tokenizer is that long"),))
    raw = read_document(source, file, size)
    if file == "vocab.txt":
        return _from_lines(raw)
    value, defects = parse_object(raw)
    if value is None:
        return Vocabulary(file, defects=tuple(defects))
    if file == "vocab.json":
        return _from_slow(value)
    return _from_fast(value)


def _from_fast(value: dict[str, Any]) -> Vocabulary:
    """Parse tokenizer.json."""
    file, model = "tokenizer.json", value.get("model")
    model = model if isinstance(model, dict) else {}
    entries = model.get("vocab")
    if isinstance(entries, dict):
        ids = {token: number for token, number in entries.items() if _is_id(number)}
        whole = len(ids) == len(entries)
    elif isinstance(entries, list):  # Unigram: [[token, score], …], the place is the id
        ids = {pair[0]: n for n, pair in enumerate(entries) if isinstance(pair, list) and pair and type(pair[0]) is str}
        whole = all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is str for pair in entries)
    else:
        return Vocabulary(file, defects=(Defect("no-vocabulary", "it has no model.vocab", "model.vocab"),))
    if not whole:
        return Vocabulary(file, defects=(Defect("no-vocabulary", "model.vocab has an odd entry", "model.vocab"),))
    added = value.get("added_tokens")
    tokens = [
        (token["content"], token.get("special") is True)
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict) and type(token.get("content")) is str
    ]
    kind = model.get("type")
    around = frozenset(_strings(value.get("post_processor")))
    others = [value.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    vocabulary = Vocabulary(
        file,
        ids,
        len(entries),
        readable=True,
        kind=kind if isinstance(kind, str) else None,
        post_processor_tokens=around,
        is_byte_level="ByteLevel" in around.union(_strings(others)),
        steps={
            "normalizer": value.get("normalizer"),
            "pre_tokenizer": value.get("pre_tokenizer"),
            "model": {name: each for name, each in model.items() if name not in ("vocab", "merges")},
        },
    )
    return vocabulary.with_tokens(tokens)


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, (list, dict)):
            pending += part.values() if isinstance(part, dict) else part


def _from_slow(value: dict[str, Any]) -> Vocabulary:
    """Parse vocab.json of a byte-level BPE."""
    ids = {token: number for token, number in value.items() if _is_id(number)}
    if len(ids) < len(value) or not ids:
        return Vocabulary("vocab.json", defects=(Defect("no-vocabulary", "it does not give each token an id"),))
    return Vocabulary("vocab.json", ids, max(ids.values()) + 1, readable=True)


def _from_lines(raw: bytes) -> Vocabulary:
    """Parse vocab.txt, where the line number is the id."""
    try:
        lines = raw.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        return Vocabulary("vocab.txt", defects=(Defect("not-text", f"it is not UTF-8 text (byte {error.start})"),))
    ids = {token.removesuffix("\r"): number for number, token in enumerate(lines)}
    return Vocabulary("vocab.txt", ids, len(lines), readable=True)


def _is_id(number: object) -> bool:
    return type(number) is int and 0 <= number <= HIGHEST


def _numbered(tokens: Iterable[tuple[str, bool]], vocabulary: Vocabulary) -> tuple[AddedToken, ...]:
    """Number further added tokens as `AddedVocabulary::add_tokens` does: by their order; ids in the file are ignored.

    A token of the model keeps the model's id; any other gets the next number after the highest so far, or the model's
    number of tokens if that is higher. Empty tokens are skipped; of a repeated token the last one counts.
    """
    by_content = {token.content: token for token in vocabulary.added}
    next_id = max(
        [vocabulary.rows, *(token.id + 1 for token in by_content.values() if token.content not in vocabulary.model)]
    )
    for content, special in tokens:
        before = by_content.get(content)
        if not content or (before is not None and before.special == special):
            continue
        number = vocabulary.model.get(content) if before is None else before.id
        # If two tokens share an id, the last added one names it.
        by_content.pop(content, None)
        by_content[content] = AddedToken(content, next_id if number is None else number, special)
        next_id += number is None
    return tuple(by_content.values())


def find_refusal(raw: bytes) -> str | None:
    """Return why the library `tokenizers` does not load a tokenizer.json; None if it does.

    Raises Skip where the library is not installed or its child process cannot run.
    """
    answer = run_sandboxed("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY)
    for line in answer.lines:
        if "refused" in line:
            return str(line["refused"]).removeprefix("Exception: ")
        if "bound" in line:
            return "it takes more memory than any tokenizer does"
    return answer.bound


def cut_texts(source: Source, steps: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[list[list[str]]]:
    """Return, for each of the steps, the tokens of each text; fewer where the library `tokenizers` refuses some.

    Args:
        source: of tokenizer.json, whose model and added tokens stay.
        steps: each the `normalizer` and the `pre_tokenizer` in the form of tokenizer.json, and settings of the BPE (`model`).
        texts: what to encode.

    Raises Skip where the library is not installed or its child process cannot run.
    """
    raw = read_document(source, "tokenizer.json", MOST_BYTES)
    answer = run_sandboxed(
        "tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY, steps=list(steps), cut=list(texts)
    )
    return [line["cut"] for line in answer.lines if "cut" in line]
