"""The tokenizer of a trial: encodes a prompt that means something, and decodes what the model adds.

A checkpoint's tokenizer.json is untrusted, so the child process of `checkpoint.sandbox` loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.sandbox import run_sandboxed
from ckptcheck.linter.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.source import Source

PROMPT = "The capital of France is Paris, and the capital of Italy is"
FILE = "tokenizer.json"
SECONDS, MEMORY = 20, 4 << 30


class TrialTokenizer:
    """The tokenizer of a checkpoint, as far as a trial needs it. All results are empty if none loads."""

    def __init__(self, source: Source | None = None) -> None:
        self._raw = b""
        if source is not None and FILE in source.files and source.files[FILE].outside_link is None:
            self._raw = source.read(FILE, 0, source.files[FILE].size)

    def encode_prompt(self, vocabulary: int) -> tuple[int, ...]:
        """Return the ids of the prompt, () if any of them is not below `vocabulary`."""
        ids: list[int] = next((line["ids"] for line in self._ask(encode=PROMPT) if "ids" in line), [])
        return tuple(ids) if all(0 <= token < vocabulary for token in ids) else ()

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence of ids as text, "" if it cannot be decoded."""
        texts = [line["text"] for line in self._ask(decode=[list(ids) for ids in sequences]) if "text" in line]
        return texts if len(texts) == len(sequences) else [""] * len(sequences)

    def _ask(self, **job: Any) -> Sequence[dict[str, Any]]:
        if not self._raw:
            return ()
        try:
            return run_sandboxed("tokenizer", self._raw, seconds=SECONDS, memory=MEMORY, **job).lines
        except Skip:
            return ()
