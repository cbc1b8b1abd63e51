"""Words for the tokens of a trial: a prompt that a language model goes on from, and what came of it.

The tokenizer.json of a checkpoint is anybody's file, so it is loaded in the child process of `checkpoint.confined`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.confined import run_confined
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.source import Source

PROMPT = "The capital of France is Paris, and the capital of Italy is"
FILE = "tokenizer.json"
SECONDS, MEMORY = 20, 4 << 30


class Text:
    """The tokenizer of a checkpoint, as far as a trial needs one; all is empty where there is none that loads."""

    def __init__(self, source: Source | None = None) -> None:
        self._raw = b""
        if source is not None and FILE in source.files and source.files[FILE].leaves is None:
            self._raw = source.read(FILE, 0, source.files[FILE].size)

    def prompt(self, vocabulary: int) -> tuple[int, ...]:
        """Return the ids of the prompt, () where it cannot be said in ids below `vocabulary`."""
        found: list[int] = next((line["ids"] for line in self._ask(encode=PROMPT) if "ids" in line), [])
        return tuple(found) if all(0 <= token < vocabulary for token in found) else ()

    def words(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence of ids as text, "" where it cannot be."""
        told = [line["text"] for line in self._ask(decode=[list(ids) for ids in sequences]) if "text" in line]
        return told if len(told) == len(sequences) else [""] * len(sequences)

    def _ask(self, **job: Any) -> Sequence[dict[str, Any]]:
        if not self._raw:
            return ()
        try:
            return run_confined("tokenizer", self._raw, seconds=SECONDS, memory=MEMORY, **job).lines
        except Skip:
            return ()
