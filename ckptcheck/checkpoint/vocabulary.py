"""Reads the tokens of a tokenizer and numbers them as the library `tokenizers` does.

Formats: tokenizers 0.23 (models BPE, WordPiece, WordLevel, Unigram; `added_vocabulary.rs`); vocab.json of GPT-2 and
vocab.txt of BERT as their slow tokenizers in transformers read them; the post-processors `TemplateProcessing`,
`BertProcessing`, `RobertaProcessing` and a `Sequence` of them, which put tokens around every text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.document import Defect, clip, parse_object
from ckptcheck.checkpoint.sandbox import run_sandboxed
from ckptcheck.checkpoint.source import Source, read_document
from ckptcheck.text.formatting import count

MOST_BYTES = 1 << 27
"""Longest tokenizer.json that is read, in bytes; Gemma 3's has 33 MB."""
MERGES_TO_SAMPLE = 20_000
"""About so many merges are checked for the order of their parts."""
HIGHEST = 2**32 - 1
"""The highest id: `tokenizers` stores ids in 32 bits."""
LOADING_SECONDS, LOADING_MEMORY = 60, 1 << 32
"""Limits for loading a file with `tokenizers`: seconds of processor time, bytes of memory. Gemma's takes two seconds."""
RARE_TEXT = "\u16a0 \U000132bf\ua66e \U0001f701"
"""A rune, a hieroglyph, a letter of one Slavonic manuscript and an alchemist's sign: no vocabulary has them all."""
FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
"""Files with tokens and ids, most complete first. ckptcheck does not read tokenizer.model (SentencePiece) or tiktoken files."""


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
    merge_count: int | None = None
    """Number of merges of a BPE; None for other models, and where it is unknown."""
    late_merge_share: float = 0.0
    """Share of merges with a part that only later merges make, see `measure_late_merges`."""
    ignore_merges: bool = False
    """Whether a word that is a token is encoded as that token, regardless of merges (`ignore_merges`)."""
    dropout: float = 0.0
    """Probability with which a BPE leaves out a merge."""
    word_end: str = ""
    """The text that a BPE appends to the last character of each word (`end_of_word_suffix`)."""
    unk_token: str | None = None
    """The token for an unknown word, for models that fail without one."""
    post_processor_tokens: frozenset[str] = frozenset()
    """The strings of the post-processor, which include the tokens that it adds around every text."""
    encoding_words: frozenset[str] | None = None
    """The strings of the normalizer and the pre-tokenizer, with the names of their steps; None if the file has no such parts."""
    decoding_words: frozenset[str] | None = None
    """The strings of the decoder."""
    framing: tuple[FramingToken, ...] = ()
    """The tokens that the post-processor adds around texts."""
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
        vocabulary = _from_slow(value)
        lines = read_merges(source)
        if lines is None:
            return vocabulary
        merges = [line.decode("utf-8", "replace") for line in lines.values() if line.strip()]
        return replace(vocabulary, merge_count=len(merges), late_merge_share=measure_late_merges(merges))
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
    merges = model.get("merges") if model.get("type") == "BPE" else None
    pairs, whole_words = len(merges) if isinstance(merges, list) else None, model.get("ignore_merges") is True
    unknown = model.get("unk_token") if model.get("type") in ("WordPiece", "WordLevel") else None
    kind = model.get("type")
    dropout = model.get("dropout") if merges is not None else None
    word_end = model.get("end_of_word_suffix") if merges is not None else None
    vocabulary = Vocabulary(
        file,
        ids,
        len(entries),
        readable=True,
        kind=kind if isinstance(kind, str) else None,
        merge_count=pairs,
        late_merge_share=measure_late_merges(merges) if isinstance(merges, list) else 0.0,
        ignore_merges=whole_words,
        dropout=float(dropout) if isinstance(dropout, (int, float)) else 0.0,
        word_end=word_end if isinstance(word_end, str) else "",
        unk_token=unknown if isinstance(unknown, str) else None,
        post_processor_tokens=frozenset(_strings(value.get("post_processor"))),
        encoding_words=frozenset(_strings([value.get("normalizer"), value.get("pre_tokenizer")])),
        decoding_words=frozenset(_strings(value.get("decoder"))),
        framing=tuple(list_framing_tokens(value.get("post_processor"))),
        steps={
            "normalizer": value.get("normalizer"),
            "pre_tokenizer": value.get("pre_tokenizer"),
            "model": {name: each for name, each in model.items() if name not in ("vocab", "merges")},
        },
    )
    return vocabulary.with_tokens(tokens)


def measure_late_merges(merges: Sequence[Any]) -> float:
    """Return the share of merges with a part that only later merges make; of a long list, the share of a sample.

    Training builds a token from tokens that it built before. A conversion from ranks lists a merge for every way to cut a token;
    at most a fifth of these are late (Gemma 3, cl100k, o200k). In a random order, two fifths and more are late.

    merges: pairs of texts, or texts with a space in them, the first applied first. For any other form the share is 0;
    `find_merge_fault` and TOK008 report it.
    """
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    step = 1 + len(pairs) // MERGES_TO_SAMPLE
    try:
        sample = [
            (number, left, right)
            for number, (left, right) in zip(range(0, len(pairs), step), pairs[::step], strict=True)
        ]
        parts = {part for _, *both in sample for part in both}
        made: dict[str, int] = {}
        for number, token in enumerate(map("".join, pairs)):
            if token in parts:
                made.setdefault(token, number)
    except (TypeError, ValueError):
        return 0.0
    late = sum(made.get(left, -1) > number or made.get(right, -1) > number for number, left, right in sample)
    return late / max(1, len(sample))


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


def read_merges(source: Source) -> dict[int, bytes] | None:
    """Return the lines of merges.txt by number, without its header (``#version: 0.2``); None if there is no such file."""
    file = "merges.txt"
    if file not in source.files or source.files[file].outside_link is not None:
        return None
    raw = read_document(source, file, MOST_BYTES)
    lines = enumerate(raw.removesuffix(b"\n").split(b"\n"), start=1)
    return {number: line.removesuffix(b"\r") for number, line in lines if not line.startswith(b"#version")}


def find_merge_fault(source: Source, vocabulary: Vocabulary) -> str | None:
    """Return why the library `tokenizers` refuses merges.txt beside a vocab.json; None if it accepts it."""
    for number, raw in (read_merges(source) or {}).items():
        try:
            parts = raw.decode("utf-8").split(" ")
        except UnicodeDecodeError:
            return f"line {number:,} is not UTF-8 text"
        if len(parts) != 2:
            return f"line {number:,} has {count(len(parts), 'part')}, and a merge has two"
        for token in (*parts, "".join(parts)):
            if token not in vocabulary.model:
                return f"line {number:,} needs the token {clip(token, 40)}, which vocab.json does not have"
    return None


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


@dataclass(frozen=True)
class TokenizerTrial:
    """The result of loading tokenizer.json with the library `tokenizers`."""

    refusal: str | None = None
    """Why it does not load it; None if it does."""
    unencodable: str | None = None
    """The error at a character that no vocabulary has; None if it encodes it."""


def try_tokenizer(source: Source) -> TokenizerTrial:
    """Let the library `tokenizers` load tokenizer.json and encode `RARE_TEXT`.

    Raises Skip where the library is not installed or its child process cannot run.
    """
    raw = read_document(source, "tokenizer.json", MOST_BYTES)
    answer = run_sandboxed("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY, **{"try": RARE_TEXT})
    unencodable = None
    for line in answer.lines:
        if "refused" in line:
            return TokenizerTrial(str(line["refused"]).removeprefix("Exception: "))
        if "bound" in line:
            return TokenizerTrial("it takes more memory than any tokenizer does")
        if "unencodable" in line:
            unencodable = str(line["unencodable"]).removeprefix("Exception: ")
    return TokenizerTrial(answer.bound, unencodable)


def encode_text(source: Source, text: str) -> frozenset[int] | None:
    """Return the ids to which the library `tokenizers` encodes a text with tokenizer.json; None if it does not load the file.

    Raises Skip where the library is not installed or its child process cannot run.
    """
    raw = read_document(source, "tokenizer.json", MOST_BYTES)
    answer = run_sandboxed("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY, encode=text)
    return next((frozenset(line["ids"]) for line in answer.lines if "ids" in line), None)


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


@dataclass(frozen=True)
class FramingToken:
    """A token that comes before or after texts."""

    token: str
    ids: tuple[int, ...] | None
    """The ids that it adds; None if the post-processor names the token but describes it nowhere."""
    key: str
    """Its JSON path in tokenizer.json."""


def list_framing_tokens(post_processor: Any, key: str = "post_processor") -> Iterator[FramingToken]:
    """Yield the framing tokens of a post-processor, each once; nothing for a post-processor of another form.

    The library adds the ids in the file and never looks a token up, so an id without a token reaches the model.
    """
    if not isinstance(post_processor, dict):
        return
    kind = post_processor.get("type")
    if kind == "Sequence":
        listed = post_processor.get("processors")
        # no release nests sequences; follow one level only, because a hostile file may nest without end
        for number, part in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(part, dict) and part.get("type") != "Sequence":
                yield from list_framing_tokens(part, f"{key}.processors.{number}")
    elif kind in ("BertProcessing", "RobertaProcessing"):
        for side in ("cls", "sep"):
            pair = post_processor.get(side)
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int:
                yield FramingToken(pair[0], (pair[1],), f"{key}.{side}")
    elif kind == "TemplateProcessing":
        yield from _list_template_tokens(post_processor, key)


def _list_template_tokens(template: dict[str, Any], key: str) -> Iterator[FramingToken]:
    described = template.get("special_tokens")
    described = described if isinstance(described, dict) else {}
    seen: set[str] = set()
    for side in ("single", "pair"):
        pieces = template.get(side)
        for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            special = piece.get("SpecialToken") if isinstance(piece, dict) else None
            name = special.get("id") if isinstance(special, dict) else None
            if not isinstance(name, str) or name in seen:
                continue
            seen.add(name)
            if name not in described:
                yield FramingToken(name, None, f"{key}.{side}.{number}")
                continue
            entry = described[name]
            ids = entry.get("ids") if isinstance(entry, dict) else None
            if isinstance(ids, list) and all(type(each) is int for each in ids):
                yield FramingToken(name, tuple(ids), f"{key}.special_tokens.{name}")
