"""Parity inside a job: a few fixed sequences that engine and trainer score after a sync, with the same weights on both sides.

A digest says which tensor differs. Logprobs say whether the engine computes with what it was given, whatever its weights look
like: packed, quantized or out of reach.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
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
    keep: Path | str | None = None
    """A folder for the logprobs, a file for each probe, which ``ckptcheck parity judge`` and ``parity why`` read."""

    def measure(self, step: int | None, version: str | None) -> ProbeRecord:
        """Score the sequences on both sides, and return the gap. Raises CkptcheckError if a side scores something else."""
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
        mean = sum(gaps) / len(gaps)
        is_finite = math.isfinite(mean)
        return ProbeRecord(mean if is_finite else None, max(gaps) if is_finite else None, len(gaps), floor, kept)

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


def score_with_transformers(model: Any) -> Score:
    """Return a function that scores with a model of transformers on this rank, in evaluation mode and without gradients.

    A model that is sharded over ranks needs a forward on all of them; give a function that does that.
    """

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        from ckptcheck.live.runtime.worker.ckptcheck_worker.scoring import score_batched

        was_training = model.training
        model.eval()
        try:
            return score_batched(model, sequences, next(model.parameters()).device)
        finally:
            model.train(was_training)

    return score
