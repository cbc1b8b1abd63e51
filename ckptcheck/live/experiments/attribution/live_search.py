"""Explains a gap with a trainer and an engine that score the recorded tokens again, one thing changed at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.live_session import LiveSession, with_batch_size
from ckptcheck.rollouts.gap_summary import COARSE_FLOOR, FLOORS

if TYPE_CHECKING:
    from ckptcheck.live.experiments.attribution.live_backend import CheckpointRef
    from ckptcheck.live.experiments.attribution.search import SearchResult
    from ckptcheck.live.experiments.attribution.sides import StartEngine, StartTrainer
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.trainers.base import Trainer
    from ckptcheck.rollouts import Rollouts
    from ckptcheck.rollouts.metadata import ScorerInfo

NO_ENGINE = "none"
"""The name of an engine that stands for none: only the trainer runs."""
COMPUTE_DTYPES = ("float32", "bfloat16")
"""The dtypes that a side can be started in."""
MIN_FLOOR = 1e-7
"""A floor of 0 would make every gap infinitely many times the floor."""


@dataclass(frozen=True)
class SearchEngine:
    """The engine of a search."""

    name: str = "vllm"
    """`NO_ENGINE`: only the trainer runs."""
    source: Path | None = None
    """The checkpoint that the engine loads; None: the trainer's."""
    dtype: str | None = None
    """What it computes in; None: as recorded."""
    mode: str = "plain"
    ranks: int = 1
    switches: Sequence[str] = ()
    """Settings, as ``NAME=VALUE``."""


@dataclass(frozen=True)
class SearchTrainer:
    """The trainer of a search."""

    name: str = "transformers"
    dtype: str | None = None
    """What it computes in; None: as recorded, else as the engine."""
    head_fp32: bool = False
    tp: int = 1
    pp: int = 1
    ep: int = 1


def search_live(
    live: LiveSession, rollouts: Rollouts, floor: float | None, engine: SearchEngine, trainer: SearchTrainer
) -> tuple[Rollouts, SearchResult]:
    """Score the rollouts where they lack the trainer's logprobs, then search for the cause of the gap with both sides.

    floor: mean |Δ| of equal weights; None assumes one by the dtypes. Returns the rollouts as scored, and the result.
    """
    import numpy as np

    from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
    from ckptcheck.live.experiments.attribution.live_backend import CheckpointRef, LiveBackend
    from ckptcheck.live.experiments.attribution.search import run_search
    from ckptcheck.live.experiments.scoring import score_rollouts
    from ckptcheck.live.runtime.process.deadlines import time_budget
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout

    log = live.observer.log
    local = live.ckpt.source.local
    if local is None or live.ckpt.config is None:
        raise CkptcheckError(f"{live.source} is not on this disk, or has no config.json")
    metadata = rollouts.metadata
    engine_dtype = engine.dtype or recorded_dtype(metadata.engine) or "float32"
    trainer_dtype = trainer.dtype or recorded_dtype(metadata.trainer) or engine_dtype
    layout = ParallelLayout(trainer.tp, trainer.pp, trainer.ep)
    idle_trainers: list[Trainer] = []

    def start_trainer(dtype: str | None, head_fp32: bool, replaces: Trainer | None) -> Trainer:
        if idle_trainers and (dtype, head_fp32) == (None, False):
            return idle_trainers.pop()
        replaces = replaces or (idle_trainers.pop() if idle_trainers else None)
        log(f"starting {trainer.name}{_describe_change(dtype, head_fp32)}")
        return live.start_trainer(
            trainer.name, dtype=dtype or trainer_dtype, head_fp32=head_fp32 or trainer.head_fp32, layout=layout,
            replaces=replaces,
        )  # fmt: skip

    start: StartTrainer = start_trainer
    if "trainer_logprobs" not in rollouts:
        scorer = start_trainer(None, False, None)
        try:
            with time_budget(live.timeout), live.observer.progress("scoring", bytewise=False) as advance:
                rollouts = score_rollouts(rollouts, scorer, folder=live.folder, advance=advance)
        except BaseException:
            scorer.close()
            raise
        idle_trainers.append(scorer)
    lengths = np.diff(rollouts.starts)
    engine_start = _prepare_engine(live, engine, engine_dtype, int(lengths.max()) + 1 if len(lengths) else 1)
    try:
        with live.observer.stages() as begin, LiveBackend(
            rollouts, live.folder, engine=engine_start, trainer=(start, CheckpointRef(local, live.ckpt.config.value)),
            timeout=live.timeout,
        ) as backend:  # fmt: skip
            result = run_search(
                backend, EXPERIMENTS, floor or assume_floor(rollouts), say=lambda name: begin(f"experiment: {name}")
            )
    finally:
        for idle in idle_trainers:
            idle.close()
    return rollouts, result


def _prepare_engine(
    live: LiveSession, engine: SearchEngine, dtype: str, context_len: int
) -> tuple[StartEngine, CheckpointRef] | None:
    """Return the engine's options and checkpoint; None without a running engine."""
    from ckptcheck.checkpoint.open import open_checkpoint
    from ckptcheck.live.experiments.attribution.live_backend import CheckpointRef
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches

    if engine.name == NO_ENGINE:
        return None
    # raises CkptcheckError where there is no such engine
    registry.require_engine(engine.name)
    ckpt = live.ckpt if engine.source is None else open_checkpoint(str(engine.source))
    local = ckpt.source.local
    if local is None or ckpt.config is None:
        raise CkptcheckError(f"{engine.source or live.source} has no config.json, so no engine loads it")
    own_folder = local
    switches = with_batch_size(parse_switches(list(engine.switches)), 8)

    def start(folder: Path | None, other_dtype: str | None, head_fp32: bool, replaces: Engine | None) -> Engine:
        live.observer.log(f"starting {engine.name}{_describe_change(other_dtype, head_fp32, folder)}")
        return live.start_engine(
            engine.name, folder=folder or own_folder, dtype=other_dtype or dtype, ranks=engine.ranks, mode=engine.mode,
            context_len=context_len, switches=replace(switches, head_fp32=True) if head_fp32 else switches,
            replaces=replaces,
        )  # fmt: skip

    return start, CheckpointRef(own_folder, ckpt.config.value)


def _describe_change(dtype: str | None, head_fp32: bool, folder: Path | None = None) -> str:
    """Return the options that differ from the job, as text for the log; "" if all are equal."""
    parts = [f"in {dtype}"] if dtype else []
    parts += ["with a float32 head"] if head_fp32 else []
    parts += [f"({folder.name})"] if folder else []
    return " " + " ".join(parts) if parts else ""


def read_floor(path: Path) -> float:
    """Return the measured floor of a file: mean |Δ| in nats. Raises CkptcheckError where it has none."""
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor

    floor = read_noise_floor(path).metrics.get("abs_mean")
    if floor is None:
        raise CkptcheckError(f"{path} has no abs_mean", hint="ckptcheck parity calibrate writes one")
    return max(floor, MIN_FLOOR)


def assume_floor(rollouts: Rollouts) -> float:
    """Return the floor that the coarser dtype of both sides usually has."""
    metadata = rollouts.metadata
    return max(FLOORS.get(recorded_dtype(side) or "", COARSE_FLOOR) for side in (metadata.engine, metadata.trainer))


def recorded_dtype(side: ScorerInfo | None) -> str | None:
    """Return the dtype that a side computed in, where the rollouts say so and it is one that a side can be started in."""
    return side.dtype if side is not None and side.dtype in COMPUTE_DTYPES else None


def describe_side(side: ScorerInfo | None) -> str:
    """Return name and dtype of a side as recorded, "" where nothing is."""
    return " ".join(part for part in (side.name, side.dtype) if part) if side is not None else ""
