"""Records rollouts of a running engine, without a trainer: what `ckptcheck parity record` writes, and its default prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.live_session import effective_logprobs
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, SamplingInfo, ScorerInfo, build_rollouts
from ckptcheck.rollouts import prompts as make
from ckptcheck.rollouts.sampling_checkpoint import read_expert_layout

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.runtime.engines.engine_options import Switches

QUESTION = "A farmer has 17 sheep; all but nine run away. How many are left?"
Tokens = tuple[int, ...]


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


def record_rollouts(
    engine: Engine,
    prompts: Sequence[Tokens],
    sampling: Sampling,
    metadata: Metadata,
    *,
    batch: int = 8,
    timeout: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Let the engine answer every prompt, `batch` at a time, and return the rollouts.

    A seed is counted up from prompt to prompt. timeout: seconds for each batch. advance: called with the numbers of
    finished and of all prompts.
    """
    generations: list[Generation] = []
    for begin in range(0, len(prompts), batch):
        batch_prompts = prompts[begin : begin + batch]
        with time_budget(timeout):
            samplings = [sampling_of_prompt(sampling, begin + place) for place in range(len(batch_prompts))]
            generations += engine.generate(batch_prompts, samplings)
        if advance is not None:
            advance(len(generations), len(prompts))
    return build_rollouts(
        (build_rollout(prompt, generation) for prompt, generation in zip(prompts, generations, strict=True)),
        complete_metadata(engine, metadata, sampling),
    )


def sampling_of_prompt(sampling: Sampling, place: int) -> Sampling:
    """Return the sampling of one request: each prompt has its own seed."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + place)


def build_rollout(prompt: Tokens, made: Generation) -> Rollout:
    """Build a rollout from a prompt and its response. A logprob that JSON cannot represent becomes NaN, and is judged as NaN."""
    values = [value if value is not None and isfinite(value) else float("nan") for value in made.logprobs]
    return Rollout(
        (*prompt, *made.tokens), len(prompt), engine=values, versions=made.weight_versions, finish=made.finish_reason
    )


def describe_rollouts(
    source: str,
    ckpt: Checkpoint,
    default_prompts: DefaultPrompts,
    engine: Engine,
    switches: Switches,
    context_len: int,
    step: int | None,
) -> Metadata:
    """Return what is known of rollouts before the engine answers: of the model, of its logprobs, and of the training step."""
    layout = read_expert_layout(ckpt)
    return Metadata(
        model=source,
        step=step,
        logprobs=effective_logprobs(engine, switches),
        vocabulary=default_prompts.vocabulary,
        max_model_len=context_len,
        experts=None if layout is None else layout.experts,
        stop_tokens=sorted(default_prompts.stop_tokens),
    )


def complete_metadata(engine: Engine, metadata: Metadata, sampling: Sampling) -> Metadata:
    """Return the metadata, completed with the engine and the sampling."""
    import msgspec

    info = engine.info
    layout = f"TP{info.ranks}" if info.ranks > 1 else ""
    return msgspec.structs.replace(
        metadata,
        engine=ScorerInfo(info.name, info.version, info.dtype, layout, facts=dict(info.facts)),
        sampling=SamplingInfo(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.max_tokens,
            sampling.seed,
            sampling.ignore_eos or None,
            sampling.presence_penalty or None,
            sampling.frequency_penalty or None,
            None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        ),
        sampled_by="engine",
    )
