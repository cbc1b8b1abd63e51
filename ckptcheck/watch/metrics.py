"""Sends the numbers of each sync to the job's tracker: Weights & Biases, trackio, TensorBoard, MLflow, or a function; see also
`metric_outlets`.

Written against wandb 0.31 (`Run.log`, `Run.alert`, `define_metric`), trackio 0.43 (`log`, `alert`), MLflow 3.17
(`log_metrics`, `set_tag`) and TensorBoard's `SummaryWriter` (`add_scalar`, `add_text`). This module imports none of them unless the
caller names one.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import SEVERITIES, Finding
from ckptcheck.runs.history.history import SyncPair
from ckptcheck.runs.history.record import SyncRecord
from ckptcheck.watch.metric_outlets import PrometheusFile, Webhook

PREFIX = "ckptcheck/"
"""Beginning of the names: trackers show the part before the slash as a section of its own."""
STEP = f"{PREFIX}step"
"""The name of the step itself, which Weights & Biases draws the others against."""
LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}
"""Severity of a finding → level of an alert."""
NAMES = ("wandb", "trackio", "mlflow")
"""Trackers that a name stands for; the job has begun a run of theirs."""


class MetricSink(Protocol):
    """Where the numbers and the findings of a sync go."""

    def find_run(self) -> None:
        """Find the job's run. Called in the job's thread; numbers and findings may come in another."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Receive the numbers of one sync. Their names begin with ``ckptcheck/``."""
        ...

    def alert(self, finding: Finding, step: int) -> None:
        """Receive one new finding."""
        ...


FILE = "prometheus:"
"""Before the path of a file for Prometheus."""
Metrics = str | Callable[[Mapping[str, float], int], object] | Sequence[Any] | Any
"""A name of `NAMES`, a file, an address, a run or a writer of a tracker, a function of numbers and step, or a list of these."""


def open_sinks(metrics: Metrics) -> list[MetricSink]:
    """Return where a watch sends its numbers. Raises CkptcheckError for what takes none."""
    if metrics is None:
        return []
    if isinstance(metrics, list | tuple):
        return [sink for each in metrics for sink in open_sinks(each)]
    if isinstance(metrics, str):
        if metrics.startswith(("http://", "https://")):
            return [Webhook(metrics)]
        if metrics.startswith(FILE):
            return [PrometheusFile(Path(metrics.removeprefix(FILE)).expanduser().absolute())]
        if metrics not in NAMES:
            raise CkptcheckError(
                f"ckptcheck.watch knows no metrics called {metrics}",
                hint=f"it knows {', '.join(NAMES)}, {FILE}FILE, the address of a webhook, a run, a SummaryWriter, and any"
                " function of numbers and step",
            )
        try:
            metrics = importlib.import_module(metrics)
        except ImportError as error:
            raise CkptcheckError(f"{metrics} is not installed here") from error
    if hasattr(metrics, "add_scalar"):
        return [_TensorBoard(metrics)]
    if hasattr(metrics, "log_metrics"):
        return [_MLflow(metrics)]
    if hasattr(metrics, "define_metric"):
        return [_WandB(metrics)]
    if hasattr(metrics, "log"):
        return [_Trackio(metrics)]
    if callable(metrics):
        return [_Function(metrics)]
    raise CkptcheckError(f"{type(metrics).__name__} takes no metrics", hint="give a run, a SummaryWriter or a function")


def measure_sync(
    sync: SyncRecord, previous: SyncRecord | None, report: Report | None, *, errors: int, blind: int
) -> dict[str, float]:
    """Return name → number for one sync; a sync without digests has fewer numbers.

    previous: the last sync before it that has digests. errors: that it shows, new ones and lasting ones: ``ok`` is 0 with any.
    blind: syncs since the watch has last seen weights.
    """
    is_ok = sync.ok and not errors and report is not None
    values: dict[str, float] = {
        "ok": float(is_ok),
        "blind": blind,
        "seconds": sync.seconds,
        "check_seconds": sync.checked,
    }
    pair = None if previous is None else SyncPair(1, 0, previous, sync)
    if sync.sent:
        values |= {"sent": len(sync.sent), "sent_bytes": sync.nbytes}
        if pair is not None and pair.before.sent:
            values["sent_changed"] = len(pair.sent_changed)
    if sync.held or sync.unseen:
        values |= {"engine_tensors": len(sync.held), "engine_unseen": len(sync.unseen)}
        if pair is not None and pair.before.held:
            values["engine_changed"] = len(pair.held_changed)
    if sync.coverage is not None:
        values["coverage"] = sync.coverage
    if sync.gap is not None and sync.gap.value is not None:
        values["gap"] = sync.gap.value
    if sync.loss is not None:
        values["loss"] = sync.loss
    if sync.probe is not None and sync.probe.mean is not None and sync.probe.most is not None:
        values |= {"probe_mean": sync.probe.mean, "probe_most": sync.probe.most}
    if report is not None:
        values |= {f"{severity}s": report.count(severity) for severity in SEVERITIES if severity != "info"}
    return {f"{PREFIX}{name}": float(value) for name, value in values.items()}


class _Sink:
    def find_run(self) -> None:
        """Need no run, or find it in any thread."""


class _Function(_Sink):
    """A function of numbers and step. Findings go to the function of `Watch(on=...)`."""

    def __init__(self, function: Callable[[Mapping[str, float], int], object]) -> None:
        self._function = function

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._function(dict(values), step)

    def alert(self, finding: Finding, step: int) -> None:
        pass


class _WandB(_Sink):
    """A run of Weights & Biases, or its module, whose run has begun by the first sync.

    The numbers join the row that the job logs next (``commit=False``) and bring their own step: a row of our own would move the
    run's step on, and Weights & Biases drops what a job then logs with an earlier one.
    """

    def __init__(self, run: Any) -> None:
        self._run, self._is_defined = run, False

    def log(self, values: Mapping[str, float], step: int) -> None:
        run = self._current_run()
        if not self._is_defined:
            run.define_metric(STEP, hidden=True)
            run.define_metric(f"{PREFIX}*", step_metric=STEP)
            self._is_defined = True
        run.log({**values, STEP: step}, commit=False)

    def alert(self, finding: Finding, step: int) -> None:
        self._current_run().alert(title=_title(finding), text=_text(finding, step), level=LEVELS[finding.severity])

    def _current_run(self) -> Any:
        """Return the run. The module has one as an attribute once it has begun."""
        run = getattr(self._run, "run", self._run) if hasattr(self._run, "init") else self._run
        if run is None:
            raise CkptcheckError("wandb has no run yet: wandb.init comes before the first sync")
        return run


class _Trackio(_Sink):
    """A run of trackio, or its module."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def alert(self, finding: Finding, step: int) -> None:
        alert = getattr(self._run, "alert", None)
        if alert is None:
            return
        levels = getattr(importlib.import_module("trackio"), "AlertLevel", None)
        level = {} if levels is None else {"level": getattr(levels, LEVELS[finding.severity])}
        alert(title=_title(finding), text=_text(finding, step), **level)


class _MLflow:
    """The module of MLflow, whose run has begun, or a client bound to a run. MLflow has no alerts, so a finding is a tag.

    The module knows the active run only in the thread that began it.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._thread = module, 0
        self._run: Any = None
        self._is_bound = not hasattr(module, "active_run")

    def find_run(self) -> None:
        """Note the active run. Raises CkptcheckError without one: MLflow would begin a run of its own."""
        if self._is_bound:
            return
        self._run, self._thread = self._module.active_run(), threading.get_ident()
        if self._run is None:
            raise CkptcheckError(
                "mlflow has no active run in this thread: mlflow.start_run comes before the first sync"
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self._is_active:
            self._module.log_metrics(dict(values), step=step)
        elif self._run is not None:
            self._module.log_metrics(dict(values), step=step, run_id=self._run.info.run_id)

    def alert(self, finding: Finding, step: int) -> None:
        name, text = f"ckptcheck.{finding.code}", _text(finding, step)[:500]
        if self._is_active:
            self._module.set_tag(name, text)
        elif self._run is not None:
            self._module.MlflowClient().set_tag(self._run.info.run_id, name, text)

    @property
    def _is_active(self) -> bool:
        """Whether the run is the active one of this thread, or the client has a run of its own."""
        return self._is_bound or (self._run is not None and self._thread == threading.get_ident())


class _TensorBoard(_Sink):
    """A SummaryWriter of torch or tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def alert(self, finding: Finding, step: int) -> None:
        self._writer.add_text(f"{PREFIX}findings", f"**{_title(finding)}** {_text(finding, step)}", step)


def _title(finding: Finding) -> str:
    return f"{finding.code} {finding.name}"


def _text(finding: Finding, step: int) -> str:
    hint = f" → {finding.hint}" if finding.hint else ""
    return f"{finding.severity} at the sync of step {step}: {finding.message}{hint}"
