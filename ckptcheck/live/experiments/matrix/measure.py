"""Measures the cells of a matrix: draws responses once, and scores them with every side that a cell compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ckptcheck.live.experiments.matrix.cells import Cell, Plan, list_cells
from ckptcheck.live.experiments.scoring import split_by_tokens
from ckptcheck.live.experiments.trainer_as_engine import ResponseEngine, decode_again
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap
from ckptcheck.text.observer import Advance

Tokens = tuple[int, ...]
Drawn = tuple[list[Tokens], list[int], list[Sequence[float]]]
"""Sequences, the lengths of their prompts, and the engine's logprobs of the responses."""


class MatrixRun:
    """Measures the cells of a plan.

    engines, trainers: the running ones, by name. prompts: returns prompts for (length, data, number). measurements: what
    measurements are added to. timeout: seconds for each cell. advance: is called with how many cells are measured, and how many
    there are to measure.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, ResponseEngine],
        trainers: Mapping[str, Trainer],
        prompts: Callable[[int, str, int], Sequence[Tokens]],
        measurements: dict[Cell, GapSummary],
        *,
        timeout: float | None = None,
        advance: Advance | None = None,
    ) -> None:
        self._plan, self._engines, self._trainers = plan, engines, trainers
        self._prompts, self._measurements, self._advance = prompts, measurements, advance or (lambda done, total: None)
        self._timeout = timeout
        self._drawn: dict[tuple[object, ...], Drawn] = {}

    def run(self) -> None:
        """Measure the cells one after the other."""
        cells = list(list_cells(self._plan))
        for measured, cell in enumerate(cells):
            self._advance(measured, len(cells))
            with time_budget(self._timeout):
                self._measurements[cell] = self._measure(cell)
        self._advance(len(cells), len(cells))

    def _measure(self, cell: Cell) -> GapSummary:
        """Draw responses and compare their logprobs. Cells that differ only in the trainer share the last drawn responses."""
        key = (cell.engine, *cell.row, cell.repeat, cell.direction, cell.trainer if cell.direction == "trainer" else "")
        if key not in self._drawn:
            # keep the last only: cells that share responses follow each other
            self._drawn = {key: self._draw(cell)}
        sequences, starts, decoded = self._drawn[key]
        trainer = self._trainers[cell.trainer]
        scores = [values for batch in split_by_tokens(sequences) for values in trainer.score(batch)]
        trainer_logprobs = [values[start - 1 :] for values, start in zip(scores, starts, strict=True)]
        if cell.direction == "engine":
            return summarize_gap(decoded, trainer_logprobs)
        return summarize_gap(trainer_logprobs, decoded)

    def _draw(self, cell: Cell) -> Drawn:
        engine, plan = self._engines[cell.engine], self._plan
        number = max(plan.sequences, cell.batch)
        prompts = list(self._prompts(cell.length - plan.response, cell.data, number))
        engine.reset_prefix_cache()
        temperature = 0.0 if cell.decoding == "greedy" else plan.temperature
        seed = plan.seed + 7919 * cell.repeat
        if cell.direction == "trainer":
            responses = self._trainers[cell.trainer].sample(
                prompts, plan.response, temperature=temperature, top_p=plan.top_p, top_k=plan.top_k, seed=seed
            )
            sequences = [(*prompt, *tokens) for prompt, tokens in zip(prompts, responses, strict=True)]
            starts = [*map(len, prompts)]
            return sequences, starts, decode_again(engine, sequences, starts, cell.batch)
        sampling = Sampling(temperature, plan.top_p, plan.top_k, plan.response, None, ignore_eos=True)
        generations = []
        for begin in range(0, number, cell.batch):
            batch_prompts = prompts[begin : begin + cell.batch]
            requests = [replace(sampling, seed=seed + begin + place) for place in range(len(batch_prompts))]
            generations += engine.generate(batch_prompts, requests)
        sequences = [(*prompt, *generation.tokens) for prompt, generation in zip(prompts, generations, strict=True)]
        return sequences, [*map(len, prompts)], [generation.logprobs for generation in generations]
