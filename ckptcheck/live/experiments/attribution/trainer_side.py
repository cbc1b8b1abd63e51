"""Scores rollouts with a running trainer: at other temperatures, with other tokens, in another dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import TrainerChange
from ckptcheck.live.experiments.attribution.rescoring import Rescoring
from ckptcheck.live.experiments.scoring import TOKENS, batch_by_length
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.trainers.base import Trainer, Weight
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Start = Callable[[str | None, bool, Trainer | None], Trainer]
"""Starts a trainer.

Arguments: the compute dtype (None: the job's), whether the output head computes in float32, and the trainer that the new one
replaces, whose process it may take over.
"""
TrainerSetup = tuple[str | None, bool]
"""The compute dtype and whether the output head computes in float32, as `Start` takes them."""
AS_IN_THE_JOB: TrainerSetup = (None, False)
WINDOWS = 256
"""Largest number of tokens that an experiment scores again from a short context."""
WINDOW_TOKENS = 1 << 14
"""Largest number of tokens in all windows, for each context length."""


class TrainerSide:
    """A trainer that starts at the first request, and restarts where a change needs another dtype.

    Args:
        mask: bool [T], True for tokens that are compared.
        folder: for temporary files.
        heat: the temperature of the recorded logprobs.
        tokens: how many tokens a batch may have, padding included.
    """

    def __init__(
        self, rollouts: Rollouts, mask: NDArray[Any], start: Start, folder: Path, *, heat: float, tokens: int = TOKENS
    ) -> None:
        self._rollouts, self._mask, self._folder = rollouts, mask, folder
        self._heat, self._tokens = heat, tokens
        self._side = Side[TrainerSetup, Trainer](lambda setup, replaced: start(*setup, replaced), job=AS_IN_THE_JOB)
        self._dtype: str | None = None

    def scores(self, change: TrainerChange) -> NDArray[Any]:
        """Return the logprobs under a change, float64 [T]. Raises Skip, and what the trainer's process raises."""
        trainer = self._ready(change.dtype, change.head_fp32)
        rescoring = Rescoring(self._rollouts, change.drop, change.prepend)
        temperature = change.temperature or self._heat
        if change.top_p < 1 or change.top_k > 0:
            if change.context is not None:
                raise Skip("top-p and top-k are not tried together with a context")
            return rescoring.score_truncated(trainer, self._folder, temperature, change.top_p, change.top_k)
        logprobs = self._whole(trainer, rescoring, temperature)
        return (
            logprobs
            if change.context is None
            else self._windows(trainer, rescoring, temperature, change.context, logprobs)
        )

    def save(self, folder: Path) -> None:
        """Write the trainer's weights as a Hugging Face checkpoint."""
        self._ready(*AS_IN_THE_JOB).save(folder)

    def weights(self) -> Sequence[Weight]:
        """Return the weights that the trainer exports."""
        return self._ready(*AS_IN_THE_JOB).weights()

    def close(self) -> None:
        """Close the trainer; the next request starts another."""
        self._side.discard()

    @property
    def has_started(self) -> bool:
        """Whether the trainer has ever started with the job's settings."""
        return self._dtype is not None

    def _ready(self, dtype: str | None, head_fp32: bool) -> Trainer:
        """Return a trainer that runs with these options; start one where needed. Raises Skip where that failed before."""
        dtype = None if dtype == self._dtype else dtype
        # a trainer in float32 has a float32 head already
        setup = dtype, head_fp32 and (dtype or self._dtype) != "float32"
        trainer = self._side.ready(setup)
        if setup == AS_IN_THE_JOB:
            self._dtype = trainer.info.dtype
        return trainer

    def _whole(self, trainer: Trainer, rescoring: Rescoring, temperature: float) -> NDArray[Any]:
        """Score every sequence with its full context."""
        logprobs = rescoring.empty_scores()
        for batch in batch_by_length(self._rollouts, self._tokens):
            numbers = [number for number in batch if len(rescoring.tokens_of(number)) > 1]
            if not numbers:
                continue
            sequences = [rescoring.tokens_of(number) for number in numbers]
            for number, values in zip(numbers, trainer.score(sequences, temperature=temperature), strict=True):
                rescoring.put_scores(logprobs, number, values)
        return logprobs

    def _windows(
        self,
        trainer: Trainer,
        rescoring: Rescoring,
        temperature: float,
        context: int,
        full_context_logprobs: NDArray[Any],
    ) -> NDArray[Any]:
        """Score evenly chosen tokens from the `context` tokens before them; each window is a forward pass of its own."""
        import numpy as np

        compared = np.flatnonzero(self._mask & np.isfinite(full_context_logprobs))
        window_limit = max(16, min(WINDOWS, WINDOW_TOKENS // context))
        positions = compared[np.unique(np.linspace(0, len(compared) - 1, min(window_limit, len(compared))).astype(int))]
        logprobs = rescoring.empty_scores()
        windows, window_positions = [], []
        sequence_numbers = np.searchsorted(self._rollouts.starts, positions, "right") - 1
        for position, number in zip(positions.tolist(), sequence_numbers.tolist(), strict=True):
            offset = position - int(self._rollouts.starts[number]) - rescoring.drop + len(rescoring.prepend)
            if offset <= context:
                logprobs[position] = full_context_logprobs[position]
                continue
            windows.append(rescoring.tokens_of(number)[offset - context : offset + 1])
            window_positions.append(position)
        step = max(1, self._tokens // (context + 1))
        for begin in range(0, len(windows), step):
            scored = trainer.score(windows[begin : begin + step], temperature=temperature)
            logprobs[window_positions[begin : begin + step]] = [values[-1] for values in scored]
        return logprobs
