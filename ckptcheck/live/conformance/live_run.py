"""Assembles a conformance run: opens the source, starts the subject, and cleans up after it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.own_transport import OwnTransport, WeightTransport, load_transport
from ckptcheck.live.conformance.run import ConformanceRun
from ckptcheck.live.conformance.trace import ConformanceTrace
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.live.refit.live_trial import TrialEngine, TrialSource


def is_own_transport(transport: object) -> bool:
    """Return whether a transport is the user's own: a class, or its name as ``module:Class``."""
    return ":" in transport if isinstance(transport, str) else transport is not None


def try_own_transport(
    transport: str | Callable[[], WeightTransport],
    source: TrialSource | None = None,
    *,
    observer: Observer = SILENT,
) -> ConformanceTrace:
    """Run the kit over a transport of the user's own. source: the weights that it carries; None: random ones of the
    receiver's shapes.

    Raises CkptcheckError for a class that cannot be used, and for a source that cannot be opened.
    """
    name = transport if isinstance(transport, str) else f"{transport.__module__}:{transport.__qualname__}"
    make = load_transport(transport) if isinstance(transport, str) else transport
    with _scratch_folder() as folder:
        subject = OwnTransport(make, name, None if source is None else _read_tensors(source, folder))
        with contextlib.closing(subject):
            return ConformanceRun(subject, observer.log).run()


def _read_tensors(source: TrialSource, folder: Path) -> dict[str, Any]:
    """Return the tensors of a source as tensors of torch."""
    from ckptcheck.live.conformance.weights import read_weights, write_safetensors
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.worker.ckptcheck_worker.tensor_files import read_tensors

    tolerated = source.errors if source.despite_errors else None
    weights = read_weights(open_source(source.target, folder / "source", source.hf_config, tolerated=tolerated))
    write_safetensors(weights, folder / "weights.safetensors")
    return read_tensors({"kind": "file", "path": str(folder / "weights.safetensors"), "tensors": len(weights)})


def try_engine_transport(
    transport: str, source: TrialSource, engine: TrialEngine, *, dtype: str = "float32", observer: Observer = SILENT
) -> ConformanceTrace:
    """Run the kit over a transport of an engine. dtype: what the engine computes in.

    Raises CkptcheckError for a source that cannot be opened, an engine that does not start, and a transport whose sender the kit
    cannot play.
    """
    from ckptcheck.live.conformance.engine_transport import EngineTransport
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.engines import registry

    registry.check_build(engine.name, transport, engine.python)
    tolerated = source.errors if source.despite_errors else None
    with _scratch_folder() as folder:
        ckpt = open_source(source.target, folder / "source", source.hf_config, tolerated=tolerated)
        if ckpt.source.local is None:
            raise CkptcheckError(f"{source.target} is not on this disk")
        with contextlib.closing(EngineTransport(ckpt, engine, transport, dtype, folder)) as subject:
            return ConformanceRun(subject, observer.log).run()


@contextlib.contextmanager
def _scratch_folder() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="ckptcheck-conformance-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
