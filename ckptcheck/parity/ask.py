"""What is asked of a checkpoint's engine where the user names no prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.tokenizer import Tokenizer
from ckptcheck.errors import CkptcheckError
from ckptcheck.parity import prompts as make

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

QUESTION = "A farmer has 17 sheep; all but nine run away. How many are left?"


class Asking:
    """Prompts for one checkpoint. unreadable: why text cannot be made into tokens, "" where it can."""

    def __init__(self, ckpt: Checkpoint) -> None:
        self._ckpt = ckpt
        embedding = ckpt.anatomy.embedding
        if embedding is None:
            raise CkptcheckError(f"{ckpt.target} has no token embedding that could be found")
        self.vocabulary: int = ckpt.tensors[embedding].shape[0]
        self._reader: make.Reader | None = None
        self.unreadable = ""
        try:
            self._reader = make.Reader.of(ckpt)
        except CkptcheckError as error:
            self.unreadable = error.message

    def prompts(self, length: int, data: str, number: int) -> list[tuple[int, ...]]:
        """Return prompts of at most so many tokens. data: real or synthetic. Raises CkptcheckError."""
        if data == "real":
            if self._reader is None:
                raise CkptcheckError(self.unreadable)
            return self._fits(make.real(self._reader, length, number))
        return make.synthetic(self.vocabulary, length, number)

    def usual(self, length: int, number: int, file: Path | None = None) -> list[tuple[int, ...]]:
        """Return a file's prompts, or text where it can be read, or made-up ids."""
        if file is not None:
            return self._fits(make.some(make.from_file(file, self._reader), number))
        return self.prompts(length, "synthetic" if self._reader is None else "real", number)

    @property
    def chat(self) -> tuple[str, tuple[int, ...], tuple[dict[str, str], ...]] | None:
        """A conversation: its text by the template, its tokens, and its messages; None without a template."""
        if self._reader is None or self._reader.template is None:
            return None
        messages = ({"role": "user", "content": QUESTION},)
        text = self._reader.chat(messages)
        return text, self._reader.tokens(text), messages

    @property
    def ends(self) -> dict[int, str]:
        """Id of an end token → who says that it is one: generation_config.json, config.json."""
        found: dict[int, str] = {}
        for config in (Tokenizer.read(self._ckpt).generation_config, self._ckpt.config):
            said = config.get("eos_token_id") if config is not None else None
            for token in said if isinstance(said, list) else [said]:
                if config is not None and type(token) is int and 0 <= token < self.vocabulary:
                    found.setdefault(token, config.file)
        return found

    @property
    def context(self) -> int | None:
        """Tokens that the model was made for."""
        return self._ckpt.config.integer("max_position_embeddings") if self._ckpt.config is not None else None

    def _fits(self, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Refuse tokens that the model does not have."""
        most = max(max(tokens, default=0) for tokens in prompts)
        if most >= self.vocabulary:
            raise CkptcheckError(f"token {most} is in a prompt, and the model has {self.vocabulary:,}")
        return list(prompts)
