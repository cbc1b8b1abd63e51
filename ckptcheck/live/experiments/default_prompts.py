"""Chooses the prompts for an engine, by default text or random ids of the checkpoint's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import prompts as make

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

QUESTION = "A farmer has 17 sheep; all but nine run away. How many are left?"


class DefaultPrompts:
    """Prompts for one checkpoint. tokenizer_error: why it cannot tokenise text; "" where it can."""

    def __init__(self, ckpt: Checkpoint) -> None:
        self._ckpt = ckpt
        embedding = ckpt.components.embedding
        if embedding is None:
            raise CkptcheckError(f"{ckpt.target} has no token embedding that could be found")
        self.vocabulary: int = ckpt.tensors[embedding].shape[0]
        self._reader: make.PromptTokenizer | None = None
        self.tokenizer_error = ""
        try:
            self._reader = make.PromptTokenizer.of(ckpt)
        except CkptcheckError as error:
            self.tokenizer_error = error.message

    def prompts(self, length: int, data: str, number: int) -> list[tuple[int, ...]]:
        """Return prompts of at most `length` tokens. data: real (text) or synthetic (random ids). Raises CkptcheckError."""
        if data == "real":
            if self._reader is None:
                raise CkptcheckError(self.tokenizer_error)
            return self._fits(make.make_text_prompts(self._reader, length, number))
        return make.make_synthetic_prompts(self.vocabulary, length, number)

    def choose(self, length: int, number: int, file: Path | None = None) -> list[tuple[int, ...]]:
        """Return the prompts of a file, else text prompts, else random ids where the checkpoint has no tokenizer."""
        if file is not None:
            return self._fits(make.repeat_to_count(make.read_prompts_file(file, self._reader), number))
        return self.prompts(length, "synthetic" if self._reader is None else "real", number)

    @property
    def conversation(self) -> tuple[str, tuple[int, ...], tuple[dict[str, str], ...]] | None:
        """A conversation: its text by the template, its tokens, and its messages; None without a template."""
        if self._reader is None or self._reader.template is None:
            return None
        messages = ({"role": "user", "content": QUESTION},)
        text = self._reader.render_chat(messages)
        return text, self._reader.tokenize(text), messages

    @property
    def stop_tokens(self) -> dict[int, str]:
        """Id of a stop token → the file that names it: generation_config.json or config.json."""
        stop_tokens: dict[int, str] = {}
        for config in (self._ckpt.generation_config, self._ckpt.config):
            value = config.get("eos_token_id") if config is not None else None
            for token in value if isinstance(value, list) else [value]:
                if config is not None and type(token) is int and 0 <= token < self.vocabulary:
                    stop_tokens.setdefault(token, config.file)
        return stop_tokens

    @property
    def context_length(self) -> int | None:
        """The model's context length in tokens; None where config.json does not say. An engine takes no more."""
        from ckptcheck.live.runtime.engines.sizing import CONTEXT_LEN_KEYS

        config = self._ckpt.config
        lengths = [] if config is None else [config.integer(key) for key in CONTEXT_LEN_KEYS]
        return min((length for length in lengths if length is not None and length > 0), default=None)

    def _fits(self, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the prompts. Raises CkptcheckError for a token that the model does not have."""
        most = max(max(tokens, default=0) for tokens in prompts)
        if most >= self.vocabulary:
            raise CkptcheckError(f"token {most} is in a prompt, and the model has {self.vocabulary:,}")
        return list(prompts)
