"""The tokens of a tokenizer and their ids, as the library `tokenizers` numbers them.

Formats: tokenizers 0.23 (models BPE, WordPiece, WordLevel, Unigram; `added_vocabulary.rs`); vocab.json of GPT-2 and
vocab.txt of BERT as their slow tokenizers in transformers read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.confined import run_confined
from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.source import Source

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MOST_BYTES = 1 << 27
"""Longest tokenizer.json that is read; Gemma 3's has 33 MB."""
HIGHEST = 2**32 - 1
"""`tokenizers` keeps ids in 32 bits."""
LOADING_SECONDS, LOADING_MEMORY = 60, 1 << 32
"""What `tokenizers` may take to load a file; Gemma's takes it two seconds."""
FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
"""Where tokens and ids can be read from, best first. tokenizer.model (SentencePiece) and tiktoken files are not read."""


@dataclass(frozen=True)
class Added:
    """A token that is found in a text before the model's own splitting begins."""

    content: str
    id: int
    special: bool


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of one file. model: the model's own, as far as ids are whole numbers; rows: how many the model counts.

    merges: how many pairs a BPE puts together; None for other models, and where they are not known. looks_words_up: it
    takes a word that is a token as it stands, merges or not (`ignore_merges`). unknown: what it says for a word that it does
    not know, if it fails without. framing: the strings of the post-processor, tokens that it puts around every text among them.
    """

    file: str
    model: dict[str, int] = field(default_factory=dict, repr=False)
    rows: int = 0
    added: tuple[Added, ...] = ()
    defects: tuple[Defect, ...] = ()
    readable: bool = False
    merges: int | None = None
    looks_words_up: bool = False
    unknown: str | None = None
    framing: frozenset[str] = frozenset()

    @cached_property
    def ids(self) -> dict[str, int]:
        """Every token → its id."""
        return self.model | {token.content: token.id for token in self.added}

    @cached_property
    def contents(self) -> dict[int, str]:
        """Every id → its token; an added one before the model's own."""
        own = {number: token for token, number in self.model.items()}
        return own | {token.id: token.content for token in self.added}

    def with_tokens(self, wanted: Iterable[tuple[str, bool]]) -> Vocabulary:
        """Return the vocabulary with further added tokens (content, special), numbered as `tokenizers` does."""
        return replace(self, added=_numbered(wanted, self))


def read_vocabulary(source: Source, file: str) -> Vocabulary:
    """Read one of FILES. Raises OSError if it exists but cannot be read."""
    size = source.files[file].size
    if size > MOST_BYTES:
        return Vocabulary(file, defects=(Defect("too-long", f"it has {size:,} bytes; no tokenizer is that long"),))
    raw = source.read(file, 0, size)
    if file == "vocab.txt":
        return _from_lines(raw)
    value, defects = parse_object(raw)
    if value is None:
        return Vocabulary(file, defects=tuple(defects))
    if file == "vocab.json":
        return replace(_from_slow(value), merges=_lines(source, "merges.txt"))
    return _from_fast(value)


def _from_fast(value: dict[str, Any]) -> Vocabulary:
    """tokenizer.json."""
    file, model = "tokenizer.json", value.get("model")
    model = model if isinstance(model, dict) else {}
    listed = model.get("vocab")
    if isinstance(listed, dict):
        ids = {token: number for token, number in listed.items() if _is_id(number)}
        whole = len(ids) == len(listed)
    elif isinstance(listed, list):  # Unigram: [[token, score], …], the place is the id
        ids = {pair[0]: n for n, pair in enumerate(listed) if isinstance(pair, list) and pair and type(pair[0]) is str}
        whole = all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is str for pair in listed)
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
    merges = model.get("merges") if model.get("type") == "BPE" else None
    pairs, whole_words = len(merges) if isinstance(merges, list) else None, model.get("ignore_merges") is True
    unknown = model.get("unk_token") if model.get("type") in ("WordPiece", "WordLevel") else None
    found = Vocabulary(
        file,
        ids,
        len(listed),
        readable=True,
        merges=pairs,
        looks_words_up=whole_words,
        unknown=unknown if isinstance(unknown, str) else None,
        framing=frozenset(_strings(value.get("post_processor"))),
    )
    return found.with_tokens(tokens)


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, (list, dict)):
            waiting += part.values() if isinstance(part, dict) else part


def _from_slow(value: dict[str, Any]) -> Vocabulary:
    """vocab.json of a byte-level BPE."""
    ids = {token: number for token, number in value.items() if _is_id(number)}
    if len(ids) < len(value) or not ids:
        return Vocabulary("vocab.json", defects=(Defect("no-vocabulary", "it does not give each token an id"),))
    return Vocabulary("vocab.json", ids, max(ids.values()) + 1, readable=True)


def _lines(source: Source, file: str) -> int | None:
    """Count the lines of a file but its header (``#version: 0.2``), None where it is not there."""
    if file not in source.files or source.files[file].leaves is not None:
        return None
    raw = source.read(file, 0, min(source.files[file].size, MOST_BYTES))
    return sum(bool(line.strip()) and not line.startswith(b"#version") for line in raw.split(b"\n"))


def _from_lines(raw: bytes) -> Vocabulary:
    """vocab.txt: the number of the line is the id."""
    try:
        lines = raw.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        return Vocabulary("vocab.txt", defects=(Defect("not-text", f"it is not UTF-8 text (byte {error.start})"),))
    ids = {token.removesuffix("\r"): number for number, token in enumerate(lines)}
    return Vocabulary("vocab.txt", ids, len(lines), readable=True)


def _is_id(number: object) -> bool:
    return type(number) is int and 0 <= number <= HIGHEST


def _numbered(tokens: Iterable[tuple[str, bool]], vocabulary: Vocabulary) -> tuple[Added, ...]:
    """Number further added tokens as `AddedVocabulary::add_tokens` does: by their order; ids in the file decide nothing.

    A token that the model has keeps the model's id; any other gets the next number after the highest given so, or the
    model's count of tokens where that is higher. Empty ones are passed over; of a repeated one the last counts.
    """
    found = {token.content: token for token in vocabulary.added}
    following = max(
        [vocabulary.rows, *(token.id + 1 for token in found.values() if token.content not in vocabulary.model)]
    )
    for content, special in tokens:
        before = found.get(content)
        if not content or (before is not None and before.special == special):
            continue
        number = vocabulary.model.get(content) if before is None else before.id
        found.pop(content, None)  # where two tokens have one id, the last one added gives it its name
        found[content] = Added(content, following if number is None else number, special)
        following += number is None
    return tuple(found.values())


def loading_error(source: Source) -> str | None:
    """Return why the library `tokenizers` does not load tokenizer.json, None if it does.

    Raises Skip where the library or a child process for it is not to be had.
    """
    size = source.files["tokenizer.json"].size
    raw = source.read("tokenizer.json", 0, min(size, MOST_BYTES))
    answer = run_confined("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY)
    for line in answer.lines:
        if "refused" in line:
            return str(line["refused"]).removeprefix("Exception: ")
        if "bound" in line:
            return "it takes more memory than any tokenizer does"
    return answer.bound


def encoded(source: Source, text: str) -> frozenset[int] | None:
    """Return the ids that the library `tokenizers` makes of a text with tokenizer.json; None where it does not load it.

    Raises Skip where the library or a child process for it is not to be had.
    """
    raw = source.read("tokenizer.json", 0, min(source.files["tokenizer.json"].size, MOST_BYTES))
    answer = run_confined("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY, encode=text)
    return next((frozenset(line["ids"]) for line in answer.lines if "ids" in line), None)


@dataclass(frozen=True)
class Table:
    """How many ids the model has a row for, and where that is seen."""

    rows: int
    file: str
    key: str


def table_of(ckpt: Checkpoint) -> Table | None:
    """Return the token embedding's size: its rows, or `vocab_size` where that is more, or the table cannot be told.

    Where the two differ CFG012 says so. Idefics keeps the rows of added tokens in a second table.
    """
    declared = ckpt.config.integer("vocab_size") if ckpt.config is not None else None
    name = ckpt.anatomy.embedding
    if name is not None and ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64")):
        rows = ckpt.tensors[name].shape[0]
        rows += sum(
            tensor.shape[0]
            for other, tensor in ckpt.tensors.items()
            if "additional_embedding" in other and len(tensor.shape) == 2
        )
        if rows >= (declared or 0):
            return Table(rows, ckpt.holders[name], name)
    return (
        Table(declared, "config.json", ckpt.config.key("vocab_size")) if declared and ckpt.config is not None else None
    )
