"""Parity inside a job: a few fixed sequences that engine and trainer score after a sync, with the same weights on both sides.

A digest says which tensor differs. Logprobs say whether the engine computes with what it was given, whatever its weights look
like: packed, quantized or out of reach.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.gap_summary import COARSE_FLOOR, FLOORS
from ckptcheck.runs.history.record import ProbeRecord

Score = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Takes sequences of token ids; returns the natural logprob of each token after the first, one list for each sequence."""


def fixed_sequences(vocabulary: int, *, number: int = 4, length: int = 32, first: int = 0) -> list[list[int]]:
    """Return sequences of random token ids, the same at every call. first: the lowest id to take, above special tokens."""
    if not 0 <= first < vocabulary:
        raise CkptcheckError(f"a vocabulary of {vocabulary} has no ids from {first} on")
    ids = random.Random(0)
    return [[ids.randrange(first, vocabulary) for _ in range(length)] for _ in range(number)]


@dataclass(frozen=True)
class Probe:
    """Sequences, and who scores them. Both functions run on the rank that keeps the record, after the sync."""

    sequences: Sequence[Sequence[int]]
    """Token ids."""
    engine: Score
    """Scores with the engine, without its prefix cache: `score_with_vllm`, or a function of yours."""
    trainer: Score
    """Scores with the weights that were sent: `score_with_transformers`, or the job's own forward."""
    every: int = 10
    """Probe at every n-th sync, the first one included."""
    floor: Path | str | None = None
    """The model's floor, as ``ckptcheck parity calibrate`` wrote it; without it only earlier probes of the job are compared."""
    dtype: str = ""
    """In which both sides compute: the first two probes are held against what it usually makes; "" for 0.05 nats."""
    draw: Callable[[], tuple[Sequence[float], Sequence[float]]] | None = None
    """Draws tokens as the job does, with its sampling settings and the engine's prefix cache; returns their logprobs, the engine's
    and the trainer's."""
    keep: Path | str | None = None
    """A folder for the logprobs, a file for each probe, which ``ckptcheck parity judge`` and ``parity why`` read."""

    def measure(self, step: int | None, version: str | None, *, is_early: bool = False) -> ProbeRecord:
        """Score the sequences on both sides, and return the gap. Raises CkptcheckError if a side scores something else.

        is_early: whether it is one of the first two, which no probe before tells anything of.
        """
        with _own_random_state():
            return self._measure(step, version, is_early)

    def _measure(self, step: int | None, version: str | None, is_early: bool) -> ProbeRecord:
        from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor

        scores = {name: [list(row) for row in score(self.sequences)] for name, score in self._sides}
        for name, rows in scores.items():
            if [len(row) for row in rows] != [len(tokens) - 1 for tokens in self.sequences]:
                raise CkptcheckError(f"the {name} did not score every token after the first of each sequence")
        gaps = [
            abs(theirs - ours)
            for engine, trainer in zip(scores["engine"], scores["trainer"], strict=True)
            for theirs, ours in zip(engine, trainer, strict=True)
        ]
        kept = self._write(scores, step, version) if self.keep is not None else ""
        floor = read_noise_floor(Path(self.floor)).metrics.get("abs_mean") if self.floor is not None else None
        if floor is None and is_early and self.dtype:
            floor = FLOORS.get(self.dtype, COARSE_FLOOR)
        drawn = None if self.draw is None else _mean_gap(*self.draw())
        mean: float | None = sum(gaps) / len(gaps)
        most: float | None = max(gaps)
        if not math.isfinite(sum(gaps)):
            mean = most = None
        return ProbeRecord(mean, most, len(gaps), floor, kept, drawn, self.dtype)

    @property
    def _sides(self) -> tuple[tuple[str, Score], ...]:
        return ("engine", self.engine), ("trainer", self.trainer)

    def _write(self, scores: dict[str, list[list[float]]], step: int | None, version: str | None) -> str:
        """Write the logprobs as rollouts whose prompt is the first token, and return the name of the file."""
        from ckptcheck.rollouts import Metadata, Rollout, ScorerInfo, build_rollouts, write_rollouts

        assert self.keep is not None
        rows = zip(self.sequences, scores["engine"], scores["trainer"], strict=True)
        rollouts = [
            Rollout(
                tokens, 1, engine=engine, trainer=trainer, versions=(version,) * (len(tokens) - 1) if version else ()
            )
            for tokens, engine, trainer in rows
        ]
        metadata = Metadata(
            step=step,
            engine=ScorerInfo("engine"),
            trainer=ScorerInfo("trainer", weight_version=version),
            # neither side drew them; the engine was given them, as it is given what a trainer drew
            sampled_by="trainer",
            logprobs="raw",
        )
        path = Path(self.keep) / ("probe.safetensors" if step is None else f"probe-step-{step}.safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rollouts(build_rollouts(rollouts, metadata), path)
        return str(path)


def _mean_gap(engine: Sequence[float], trainer: Sequence[float]) -> float | None:
    """Return the mean |Δ| of tokens, in nats; None where none was drawn, and where a logprob is no finite number."""
    mean = sum(abs(a - b) for a, b in zip(engine, trainer, strict=True)) / len(engine) if engine else math.nan
    return mean if math.isfinite(mean) else None


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Leave the random numbers of torch as they are: an engine in this process draws from the same ones as the trainer."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        yield


def score_with_vllm(llm: Any) -> Score:
    """Return a function that scores with a vLLM in this process. llm: ``vllm.LLM``, such as ``trainer.vllm_generation.llm``."""

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        # vLLM reads no prefix cache for a request that asks for the logprobs of its prompt
        parameters = type(llm.get_default_sampling_params())(
            max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False
        )
        prompts = [{"prompt_token_ids": list(tokens)} for tokens in sequences]
        answers = llm.generate(prompts, parameters, use_tqdm=False)
        return [
            [places[token].logprob for places, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)]
            for answer, tokens in zip(answers, sequences, strict=True)
        ]

    return score


def score_with_transformers(model: Any, *, temperature: float = 1.0) -> Score:
    """Return a function that scores with a model of transformers on this rank, in evaluation mode and without gradients.

    temperature: divides the logits.

    A model that is sharded over ranks needs a forward on all of them; give a function that does that.
    """

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        from ckptcheck.live.runtime.worker.ckptcheck_worker.scoring import score_batched

        was_training = model.training
        model.eval()
        try:
            return score_batched(model, sequences, next(model.parameters()).device, temperature)
        finally:
            model.train(was_training)

    return score
