"""Records rollouts within a trial of refit, so that parity needs no engine and no trainer of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.live.experiments.default_prompts import DefaultPrompts
from ckptcheck.live.experiments.record import describe_rollouts, record_rollouts
from ckptcheck.live.experiments.scoring import score_rollouts
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.engines.sizing import SPARE_TOKENS
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts import write_rollouts
from ckptcheck.text.observer import Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class FirstStepRollouts:
    """The rollouts of the first step of a job, as ``parity record`` and ``parity score`` make them."""

    def __init__(
        self,
        ckpt: Checkpoint,
        source: str,
        output: Path,
        sampling: Sampling,
        switches: Switches,
        observer: Observer,
        *,
        prompts: Path | None,
        number: int,
        length: int,
        batch: int,
        step: int | None,
    ) -> None:
        """Choose the prompts.

        Args:
            ckpt: the model.
            source: the model as the user named it.
            output: file that the rollouts are written to.
            sampling: how responses are sampled.
            switches: of the engine.
            observer: receives messages.
            prompts: file of prompts; None: built-in ones.
            number: prompts to answer.
            length: tokens of a built-in prompt, at most.
            batch: prompts that are answered at once.
            step: of the training run, kept with the rollouts.

        Raises CkptcheckError for prompts that the model cannot take.

        """
        self._ckpt, self._source, self._output, self._observer = ckpt, source, output, observer
        self._sampling, self._switches, self._batch, self._step = sampling, switches, batch, step
        self._default_prompts = DefaultPrompts(ckpt)
        self._prompts = self._default_prompts.choose(length, number, prompts)
        self.context_len = max(map(len, self._prompts)) + sampling.max_tokens + SPARE_TOKENS
        self.sequences = max(8, batch)

    @property
    def has_room(self) -> bool:
        """Whether the model has room for the longest sequence."""
        room = self._default_prompts.context_length
        return room is None or self.context_len <= room

    def record(self, engine: Engine, trainer: Trainer) -> None:
        """Have the engine answer the prompts and the trainer score the tokens, and write the file. Raises CkptcheckError."""
        metadata = describe_rollouts(
            self._source, self._ckpt, self._default_prompts, engine, self._switches, self.context_len, self._step
        )
        rollouts = record_rollouts(engine, self._prompts, self._sampling, metadata, batch=self._batch)
        scored = score_rollouts(rollouts, trainer)
        write_rollouts(scored, self._output)
        self._observer.log(
            f"{scored.sequence_count} responses, {len(scored.tokens):,} tokens, scored by both sides: {self._output}"
        )
