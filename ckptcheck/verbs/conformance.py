"""``ckptcheck conformance``: puts faults on a transport, one after the other, and reports how each was answered."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    Argument,
    ComputeDtype,
    DespiteErrors,
    EngineGpus,
    EngineMode,
    EngineName,
    EnginePython,
    EngineTp,
    HfConfig,
    Markdown,
    Option,
    StrPath,
    Switches,
)
from ckptcheck.verbs.parameter import Given, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report
    from ckptcheck.live.conformance.own_transport import WeightTransport

ENGINE_OPTIONS = ("engine", "engine_tp", "engine_mode", "dtype", "engine_gpus", "switch", "engine_python")


def reject_unused(given: Given) -> None:
    """Reject options of an engine if the transport brings its own receiver."""
    from ckptcheck.live.conformance.run import is_own_transport

    if is_own_transport(given["transport"]):
        given.reject(ENGINE_OPTIONS, "with a transport of your own, which brings its receiver")
    if given["source"] is None:
        given.reject(["hf_config", "despite_errors"], "without SOURCE")


@verb(reject_unused)
def conformance(
    source: Annotated[
        StrPath | None,
        Argument(
            "A checkpoint whose weights are sent; without it a transport of your own gets random ones of its receiver's shapes.",
            metavar="[SOURCE]",
        ),
    ] = None,
    *,
    transport: Annotated[
        "str | Callable[[], WeightTransport] | None",
        Option(
            "How weights reach the engine, by its name, or a transport of your own: module:Class.",
            metavar="NAME",
            shown="the engine's first",
        ),
    ] = None,
    engine: EngineName = "vllm",
    dtype: ComputeDtype = "float32",
    engine_tp: EngineTp = 1,
    engine_mode: EngineMode = "plain",
    engine_gpus: EngineGpus = None,
    switch: Switches = (),
    engine_python: EnginePython = None,
    hf_config: HfConfig = None,
    despite_errors: DespiteErrors = False,
    markdown: Markdown = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Put faults on a transport of weights, one after the other, and report who noticed each: for authors of transports.

    No trainer runs, and the kit chooses what is sent. Exit codes: 0 every fault is noticed, 1 findings, 2 could not check.

    In Python `transport` can be a class with five methods. Raises CkptcheckError for what cannot be started.
    """
    from ckptcheck.live.conformance.run import is_own_transport, try_engine_transport, try_own_transport
    from ckptcheck.live.refit.live_trial import TrialEngine, TrialSource
    from ckptcheck.live.refit.source import add_source_errors
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.text.file_io import replace_file, require_writable
    from ckptcheck.verbs.reports import build_report

    is_own = is_own_transport(transport)
    if markdown is not None:
        require_writable(Path(markdown))
    trial_source = None if source is None else TrialSource(os.fspath(source), to_path(hf_config), despite_errors)
    if transport is not None and (is_own or not isinstance(transport, str)):
        trace = try_own_transport(transport, trial_source, observer=observer)
    elif trial_source is None:
        raise CkptcheckError(
            "there are no weights to send", hint="name a checkpoint, or a transport of your own by module:Class"
        )
    else:
        trace = try_engine_transport(
            registry.choose_transport(engine, transport), trial_source,
            TrialEngine(engine, engine_tp, engine_mode, several(switch), engine_gpus, to_path(engine_python)),
            dtype=dtype, observer=observer,
        )  # fmt: skip
    report = add_source_errors(
        build_report(trace, pictures=pictures), trial_source.errors if trial_source is not None else None
    )
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report
