"""``ckptcheck refit lora``: loads a LoRA adapter into a live engine, and checks what requests with it compute."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    Argument,
    ComputeDtype,
    EngineGpus,
    EngineMode,
    EngineName,
    EnginePython,
    EngineTp,
    Option,
    PhaseTimeouts,
    StrPath,
)
from ckptcheck.verbs.parameter import Given, reject_phases, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


def reject_unused(given: Given) -> None:
    """Reject timeouts of phases that a trial of an adapter does not have."""
    reject_phases(given, ["score", "step"], "with refit lora: adapters are loaded and scored in one phase, sync")


@verb(reject_unused)
def lora(
    source: Annotated[StrPath, Argument("The base model: a checkpoint on this disk.", metavar="SOURCE")],
    adapter: Annotated[StrPath, Argument("The folder of a LoRA adapter, as PEFT writes it.", metavar="ADAPTER")],
    *,
    engine: EngineName = "vllm",
    update: Annotated[
        Literal["reload", "inplace", "same"],
        Option(
            "How the job loads a new adapter under the old name: reload (unload, then load), inplace (vLLM's "
            "load_inplace), same (vLLM: the same name and number with a new path)."
        ),
    ] = "reload",
    dtype: ComputeDtype = "float32",
    engine_tp: EngineTp = 1,
    engine_mode: EngineMode = "plain",
    engine_gpus: EngineGpus = None,
    engine_python: EnginePython = None,
    timeout: PhaseTimeouts = (),
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Load an adapter, evict it, replace it under its name, and hold each to a cold load and to the merged checkpoint.

    Exit codes: 0 requests get the adapter, 1 findings, 2 could not check.

    Raises CkptcheckError for what cannot be opened or started.
    """
    from ckptcheck.live.refit.live_trial import TrialEngine
    from ckptcheck.live.refit.lora.trial import run_live_lora_trial
    from ckptcheck.live.refit.trial_state import parse_timeouts
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.verbs.reports import build_report

    timeouts = parse_timeouts(several(timeout))
    registry.require_engine(engine)
    trial_engine = TrialEngine(engine, engine_tp, engine_mode, (), engine_gpus, to_path(engine_python))
    with run_live_lora_trial(
        os.fspath(source), Path(adapter), trial_engine, dtype=dtype, update=update, timeouts=timeouts, observer=observer
    ) as trace:
        return build_report(trace, pictures=pictures)
