"""Measures the cells of a matrix: responses are drawn once and scored by every side that a cell asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Sampling
from ckptcheck.host.patience import within
from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.matrix.cells import Cell, Plan, cells
from ckptcheck.parity.matrix.ledger import Ledger
from ckptcheck.trainers.base import Trainer

Tokens = tuple[int, ...]
Drawn = tuple[list[Tokens], list[int], list[tuple[float, ...]]]
"""Sequences, how long their prompts are, and logprobs of the responses by the engine."""


class Measurement:
    """engines, trainers: by name, running. prompts: (length, data, number) → prompts that leave room for the response.

    timeout: seconds for each cell.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        trainers: Mapping[str, Trainer],
        prompts: Callable[[int, str, int], Sequence[Tokens]],
        ledger: Ledger,
        *,
        timeout: float | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._plan, self._engines, self._trainers = plan, engines, trainers
        self._prompts, self._ledger, self._say = prompts, ledger, say
        self._timeout = timeout
        self._drawn: dict[tuple[object, ...], Drawn] = {}

    def run(self) -> None:
        """Measure what the ledger has not, and add it there."""
        left = [cell for cell in cells(self._plan) if cell not in self._ledger.done]
        if before := len(self._ledger.done):
            self._say(f"{before} measurements were there already")
        began = time.monotonic()
        for number, cell in enumerate(left):
            if number:
                each = (time.monotonic() - began) / number
                self._say(f"{number} of {len(left)} measured, {_span(each * (len(left) - number))} left")
            with within(self._timeout):
                found = self._measured(cell)
            self._ledger.add(cell, found)

    def _measured(self, cell: Cell) -> Gap:
        """Draw, or take what was drawn last where only the trainer is another, and compare."""
        key = (cell.engine, *cell.row, cell.repeat, cell.direction, cell.trainer if cell.direction == "trainer" else "")
        if key not in self._drawn:
            self._drawn = {key: self._draw(cell)}  # no cell asks for one that is longer ago
        sequences, starts, decoded = self._drawn[key]
        scored = self._trainers[cell.trainer].score(sequences)
        own = [values[start - 1 :] for values, start in zip(scored, starts, strict=True)]
        return gap(decoded, own) if cell.direction == "engine" else gap(own, decoded)

    def _draw(self, cell: Cell) -> Drawn:
        engine, plan = self._engines[cell.engine], self._plan
        number = max(plan.sequences, cell.batch)
        prompts = list(self._prompts(cell.length - plan.response, cell.data, number))
        engine.reset_prefix_cache()
        heat = 0.0 if cell.decoding == "greedy" else plan.temperature
        seed = plan.seed + 7919 * cell.repeat
        if cell.direction == "trainer":
            drawn = self._trainers[cell.trainer].sample(
                prompts, plan.response, temperature=heat, top_p=plan.top_p, top_k=plan.top_k, seed=seed
            )
            sequences = [(*prompt, *tokens) for prompt, tokens in zip(prompts, drawn, strict=True)]
            return sequences, [*map(len, prompts)], self._followed(engine, sequences, prompts, cell.batch)
        asked = Sampling(heat, plan.top_p, plan.top_k, plan.response, None, ignore_eos=True)
        made = []
        for begin in range(0, number, cell.batch):
            part = prompts[begin : begin + cell.batch]
            made += engine.generate(part, [replace(asked, seed=seed + begin + place) for place in range(len(part))])
        sequences = [(*prompt, *each.tokens) for prompt, each in zip(prompts, made, strict=True)]
        return sequences, [*map(len, prompts)], [each.logprobs for each in made]

    def _followed(
        self, engine: Engine, sequences: Sequence[Tokens], prompts: Sequence[Tokens], batch: int
    ) -> list[tuple[float, ...]]:
        """Have the engine decode the given responses, as many at once as the cell says."""
        found = []
        for begin in range(0, len(sequences), batch):
            part = sequences[begin : begin + batch]
            first = min(map(len, prompts[begin : begin + batch]))
            values = engine.follow(part, first)
            found += [each[len(prompts[begin + place]) - first :] for place, each in enumerate(values)]
        return found


def _span(seconds: float) -> str:
    """Say how long something takes.

    >>> _span(42), _span(400)
    ('42 s', '7 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
