"""Measures a matrix on real engines and trainers, each started once for a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.live_session import LiveSession, with_batch_size
from ckptcheck.live.experiments.matrix.trace import TRAINERS, Cell, Plan, list_cells
from ckptcheck.live.experiments.scoring import ResponseEngine, TrainerAsEngine, decode_again, split_by_tokens
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap
from ckptcheck.text.observer import Advance

if TYPE_CHECKING:
    from ckptcheck.linter.report import Section
    from ckptcheck.live.experiments.matrix.trace import MatrixTrace
    from ckptcheck.live.experiments.record import DefaultPrompts
    from ckptcheck.live.runtime.engines.base import Engine, EngineInfo
    from ckptcheck.live.runtime.trainers.base import TrainerInfo
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout

Tokens = tuple[int, ...]
Drawn = tuple[list[Tokens], list[int], list[Sequence[float]]]
"""Sequences, the lengths of their prompts, and the engine's logprobs of the responses."""
SPARE_TOKENS = 8
"""Tokens of context beyond the longest sequence."""


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


@dataclass(frozen=True)
class MatrixSides:
    """How the engines and trainers of a matrix are started."""

    dtype: str = "float32"
    """What both sides compute in."""
    head_fp32: bool = False
    """The trainers' output head computes in float32."""
    switches: Sequence[str] = ()
    """Settings of the engines, as ``NAME=VALUE``."""
    mode: str = "plain"
    """How engines store weights on a CPU."""


def measure_matrix(
    live: LiveSession,
    plan: Plan,
    sides: MatrixSides,
    *,
    calibrate: bool = False,
    default_lengths: bool = False,
) -> MatrixTrace:
    """Start every engine and trainer once for each layout, and measure every cell.

    calibrate: measure the noise floor of every pair first. default_lengths: the user named no lengths. A worker that dies or
    hangs, and an interruption, end the measurement, and the trace says so. Raises what a start raises, and an interruption before
    the first measurement.
    """
    from ckptcheck.live.experiments.matrix.trace import (
        MatrixTrace,
        drop_unmeasurable_cells,
        drop_unsplit_pairs,
        list_cells,
    )
    from ckptcheck.live.experiments.record import DefaultPrompts
    from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout

    default_prompts = DefaultPrompts(live.ckpt)
    plan, left_out = drop_unmeasurable_cells(
        plan, default_prompts.context_length, default_prompts.tokenizer_error, default_lengths=default_lengths
    )
    run = _LayoutRun(live, sides, default_prompts, left_out, calibrate=calibrate)
    plans = [plan]
    if plan.layouts:
        pairs_of = drop_unsplit_pairs(plan.pairs, plan.layouts)
        plans = [replace(plan, layouts=(layout,), pairs=pairs) for layout, pairs in pairs_of.items() if pairs]
        left_out |= {
            f"{':'.join(pair)} {layout}": "both sides are split as in an earlier layout"
            for layout, pairs in pairs_of.items()
            for pair in plan.pairs
            if pair not in pairs
        }
    number = sum(1 for layout_plan in plans for _ in list_cells(layout_plan))
    broken: dict[str, str] = {}
    try:
        for layout_plan in plans:
            run.measure(layout_plan)
    except (WorkerDied, WorkerTimeout, RemoteError, KeyboardInterrupt) as error:
        done = len(run.measurements)
        if not done and (isinstance(error, KeyboardInterrupt) or not run.versions):
            raise
        broken["the matrix"] = f"{error or 'interrupted'}, after {done:,} of {number:,} measurements"
    if not run.versions:
        raise CkptcheckError(f"no layout could be started: {left_out[plans[0].layouts[0]]}")
    return MatrixTrace(
        live.source,
        run.measurements,
        left_out,
        tuple(run.versions),
        sides.dtype,
        run.floor,
        tuple(run.sections),
        broken,
    )


class _LayoutRun:
    """Starts the sides of one layout after the other, so that those of two layouts need not fit into memory together."""

    def __init__(
        self,
        live: LiveSession,
        sides: MatrixSides,
        default_prompts: DefaultPrompts,
        left_out: dict[str, str],
        *,
        calibrate: bool,
    ) -> None:
        self._live, self._sides, self._default_prompts = live, sides, default_prompts
        self._left_out, self._calibrate = left_out, calibrate
        self.measurements: dict[Cell, GapSummary] = {}
        self.versions: list[str] = []
        self.floor: dict[str, float] = {}
        self.sections: list[Section] = []

    def measure(self, plan: Plan) -> None:
        """Start the sides of a plan with one layout or none, calibrate where asked, and measure the cells."""
        from ckptcheck.live.experiments.matrix.live_matrix import MatrixRun
        from ckptcheck.live.runtime.trainers.layout import ParallelLayout

        layout = ParallelLayout.parse(plan.layouts[0].upper()) if plan.layouts else ParallelLayout()
        names = [name for pair in plan.pairs for name in pair]
        with ExitStack() as stack:
            try:
                engines = {
                    name: self._start_engine(name, layout.tp, plan, stack)
                    for name in dict.fromkeys(names)
                    if name not in TRAINERS
                }
                trainers = {
                    name: self._start_trainer(name, layout, stack) for name in dict.fromkeys(names) if name in TRAINERS
                }
            except CkptcheckError as error:
                # heads that this layout does not divide, for example; the other layouts are measured all the same
                if not plan.layouts:
                    raise
                self._left_out[plan.layouts[0]] = error.message
                return
            infos: list[EngineInfo | TrainerInfo] = [
                *(trainer.info for trainer in trainers.values()),
                *(engine.info for engine in engines.values()),
            ]
            versions = [f"{info.name} {info.version}" for info in infos]
            # the first layout has every pair
            self.versions = self.versions or versions
            sources: dict[str, ResponseEngine] = {
                name: engines[name] if name in engines else TrainerAsEngine(trainers[name])
                for name in dict.fromkeys(engine for _, engine in plan.pairs)
            }
            if self._calibrate:
                self._measure_floors(plan, sources, trainers)
            with self._live.observer.progress("measuring", bytewise=False) as advance:
                MatrixRun(
                    plan, sources, trainers, self._default_prompts.prompts, self.measurements, timeout=self._live.timeout,
                    advance=advance,
                ).run()  # fmt: skip

    def _start_trainer(self, name: str, layout: ParallelLayout, stack: ExitStack) -> Trainer:
        with self._live.observer.phase(f"starting {name}{f' {layout}' if name == 'megatron' and str(layout) else ''}"):
            trainer = self._live.start_trainer(
                name,
                dtype=self._sides.dtype,
                head_fp32=self._sides.head_fp32,
                layout=layout if name == "megatron" else None,
            )
        stack.callback(trainer.close)
        return trainer

    def _start_engine(self, name: str, ranks: int, plan: Plan, stack: ExitStack) -> Engine:
        from ckptcheck.live.runtime.engines.engine_options import parse_switches

        sides = self._sides
        # without this switch an engine splits a large batch into several small ones
        switches = with_batch_size(parse_switches(sorted(sides.switches)), max(plan.batches))
        with self._live.observer.phase(f"starting {name}{f' on {ranks} ranks' if ranks > 1 else ''}"):
            engine = self._live.start_engine(
                name, dtype=sides.dtype, ranks=ranks, mode=sides.mode,
                context_len=min(max(plan.lengths) + SPARE_TOKENS, self._default_prompts.context_length or 1 << 30),
                concurrent_sequences=max(8, *plan.batches), switches=switches,
            )  # fmt: skip
        stack.callback(engine.close)
        self._left_out |= {f"{name} {switch}": reason for switch, reason in engine.ignored_switches.items()}
        return engine

    def _measure_floors(
        self, plan: Plan, engines: Mapping[str, ResponseEngine], trainers: Mapping[str, Trainer]
    ) -> None:
        from ckptcheck.live.experiments.calibrate import TITLES, calibrate

        for trainer_name, engine_name in plan.pairs:
            pair = " ".join([f"{trainer_name}:{engine_name}", *plan.layouts])
            prompts = self._default_prompts.prompts(min(plan.lengths) - plan.response, plan.data[0], 8)
            self._live.observer.log(f"the floor of {pair}")
            with self._live.observer.stages() as begin:
                measurement = calibrate(
                    engines[engine_name], trainers[trainer_name], prompts, response=plan.response, say=begin
                )
            if measurement.failed_comparisons:
                reason = f"logprobs of {TITLES[measurement.failed_comparisons[0]]} are not finite"
                self._left_out[f"the floor of {pair}"] = reason
            else:
                self.floor[pair] = max(metrics.mult_prob_error for metrics in measurement.metrics.values())
            self.sections.append(measurement.section(pair))
