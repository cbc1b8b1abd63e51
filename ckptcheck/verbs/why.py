"""``ckptcheck parity why``: names the cause of a gap by experiments that take one cause away at a time."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    Argument,
    CallTimeout,
    Dtype,
    EngineMode,
    EnginePython,
    EngineSource,
    EngineTp,
    Floor,
    HeadFp32,
    Option,
    StrPath,
    Switches,
    Trainer,
    TrainerDtype,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
)
from ckptcheck.verbs.parameter import Given, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report

ENGINE_OPTIONS = ("engine_source", "dtype", "switch", "engine_mode", "engine_tp", "engine_python")
RUN_OPTIONS = (
    "engine", *ENGINE_OPTIONS, "trainer", "trainer_dtype", "head_fp32", "tp", "pp", "ep", "trainer_python", "timeout",
)  # fmt: skip


def reject_unused(given: Given) -> None:
    """Reject options about parts that do not run."""
    if given["source"] is None:
        given.reject(RUN_OPTIONS, "without SOURCE: nothing is run", "name the trainer's checkpoint after FILE")
    if given["engine"] == "none":
        given.reject(ENGINE_OPTIONS, "with --engine none: no engine is run")


@verb(reject_unused)
def parity_why(
    file: Annotated[StrPath, Argument("Rollouts: as record, score or convert wrote them.", metavar="FILE")],
    source: Annotated[
        StrPath | None,
        Argument("The trainer's checkpoint on this disk; without it nothing runs.", metavar="[SOURCE]"),
    ] = None,
    *,
    engine: Annotated[str, Option("The inference engine; none: only the trainer runs.")] = "vllm",
    trainer: Trainer = "transformers",
    dtype: Annotated[Dtype | None, Option("The dtype that the engine computes in.", shown="as recorded")] = None,
    floor: Floor = None,
    trainer_dtype: TrainerDtype = None,
    head_fp32: HeadFp32 = False,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    trainer_python: TrainerPython = None,
    engine_source: EngineSource = None,
    switch: Switches = (),
    engine_mode: EngineMode = "plain",
    engine_tp: EngineTp = 1,
    engine_python: EnginePython = None,
    timeout: CallTimeout = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Find the cause of a gap (semantics, weights, path, precision, routing or objective), and the experiment that shows it.

    FILE alone is explained as far as what is recorded allows. With SOURCE a trainer and an engine score the same tokens
    again, with one thing changed at a time. Without --floor the noise floor is assumed by the dtype.

    Exit codes: 0 no gap, or one that is no error, 1 findings, 2 could not check.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.attribution import live_search
    from ckptcheck.live.experiments.attribution.experiment import RecordedBackend
    from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
    from ckptcheck.live.experiments.attribution.search import Attribution, run_search
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.rollouts import read_rollouts
    from ckptcheck.verbs.reports import build_report

    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(f"{file} is malformed: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}")
    if "engine_logprobs" not in rollouts:
        raise CkptcheckError(f"{file} has no logprobs of an engine")
    measured_floor = live_search.read_floor(Path(floor)) if floor is not None else None
    loaded = load_rules()
    if source is None:
        if "trainer_logprobs" not in rollouts:
            raise CkptcheckError(
                f"{file} has no logprobs of a trainer", hint=f"ckptcheck parity why {file} SOURCE scores it first"
            )
        result = run_search(
            RecordedBackend(rollouts), EXPERIMENTS, measured_floor or live_search.assume_floor(rollouts)
        )
    else:
        with open_live_session(
            os.fspath(source), timeout=timeout, engine_python=to_path(engine_python),
            trainer_python=to_path(trainer_python), observer=observer,
        ) as live:  # fmt: skip
            rollouts, result = live_search.search_live(
                live, rollouts, measured_floor,
                live_search.SearchEngine(engine, to_path(engine_source), dtype, engine_mode, engine_tp, several(switch)),
                live_search.SearchTrainer(trainer, trainer_dtype, head_fp32, tp, pp, ep),
            )  # fmt: skip
    metadata = rollouts.metadata
    sides = (
        live_search.describe_side(metadata.engine) or "engine",
        live_search.describe_side(metadata.trainer) or "trainer",
    )
    return build_report(
        Attribution(os.fspath(file), result, sides, has_measured_floor=measured_floor is not None),
        loaded,
        pictures=pictures,
    )
