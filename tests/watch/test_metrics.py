"""The numbers of each sync and its findings reach Weights & Biases, trackio, TensorBoard, MLflow and functions as these expect."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.watch import SyncWarning, Watch
from ckptcheck.watch.metrics import open_sinks
from tests.watch.toy import NAMES, Engine, Trainer


def run_syncs(watch: Watch, number: int = 3, deaf: tuple[str, ...] = (), **added: float) -> None:
    """Sync a toy trainer into a toy engine that takes all tensors but the deaf ones from the last sync on."""
    trainer, engine = Trainer(), watch.engine
    assert isinstance(engine, Engine)
    for step in range(number):
        if step == number - 1:
            engine.deaf = deaf
        with watch(step=step) as sync:
            engine.update(sync.sent(trainer.export()))
            sync.add_numbers(**added)
        trainer.step()


def test_a_function_gets_the_numbers_of_every_sync() -> None:
    rows: list[tuple[Mapping[str, float], int]] = []
    run_syncs(Watch(Engine(), metrics=lambda values, step: rows.append((values, step))), parity=0.002)
    assert [step for _, step in rows] == [0, 1, 2]
    first, last = rows[0][0], rows[-1][0]
    assert "ckptcheck/sent_changed" not in first
    wanted = {
        "ckptcheck/ok": 1, "ckptcheck/sent": len(NAMES), "ckptcheck/sent_changed": len(NAMES), "ckptcheck/engine_unseen": 0,
        "ckptcheck/engine_tensors": len(NAMES), "ckptcheck/engine_changed": len(NAMES), "ckptcheck/errors": 0,
        "ckptcheck/warnings": 0, "ckptcheck/parity": 0.002,
    }  # fmt: skip
    assert wanted.items() <= last.items()
    assert last["ckptcheck/sent_bytes"] == 64 * len(NAMES)
    assert {"ckptcheck/seconds", "ckptcheck/check_seconds"} <= last.keys()


def test_what_was_not_looked_at_has_no_number() -> None:
    rows: list[Mapping[str, float]] = []
    run_syncs(Watch(Engine(), every=2, metrics=lambda values, step: rows.append(values)))
    assert "ckptcheck/sent" not in rows[1]
    assert rows[2]["ckptcheck/sent_changed"] == len(NAMES)


class Tracker:
    """Notes what is called on it."""

    def __init__(self, *methods: str, **attributes: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in methods:
            setattr(self, name, self._note(name))
        vars(self).update(attributes)

    def _note(self, name: str) -> Any:
        return lambda *arguments, **keywords: self.calls.append((name, arguments, keywords))

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, keywords) for called, arguments, keywords in self.calls if called == name]


def lose_one(metrics: Any, background: bool = False) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyncWarning)
        watch = Watch(Engine(), metrics=metrics, background=background)
        run_syncs(watch, deaf=(NAMES[0],))
        assert watch.wait(60)


def test_weights_and_biases_keeps_the_jobs_own_steps() -> None:
    run = Tracker("log", "alert", "define_metric")
    lose_one(run)
    rows = run.of("log")
    assert all(keywords == {"commit": False} for _, keywords in rows)
    assert [arguments[0]["ckptcheck/step"] for arguments, _ in rows] == [0, 1, 2]
    assert [arguments for arguments, _ in run.of("define_metric")] == [("ckptcheck/step",), ("ckptcheck/*",)]
    ((_, alert),) = run.of("alert")
    assert (alert["title"], alert["level"]) == ("HIS001 stale-in-engine", "ERROR")
    assert "at the sync of step 2" in alert["text"]


def test_tensorboard_gets_scalars_and_a_text() -> None:
    writer = Tracker("add_scalar", "add_text")
    lose_one(writer)
    assert (("ckptcheck/sent", 6.0, 1), {}) in writer.of("add_scalar")
    ((text, _),) = writer.of("add_text")
    assert text[0] == "ckptcheck/findings"
    assert text[2] == 2


def test_mlflow_gets_metrics_and_a_tag_of_its_active_run() -> None:
    module = Tracker("log_metrics", "set_tag", active_run=lambda: object())
    lose_one(module)
    assert [keywords["step"] for _, keywords in module.of("log_metrics")] == [0, 1, 2]
    assert module.of("set_tag")[0][0][0] == "ckptcheck.HIS001"


def test_mlflow_gets_them_from_another_thread_by_the_id_of_the_run() -> None:
    """The module knows the active run only in the job's own thread."""
    client, job = Tracker("set_tag"), threading.get_ident()
    run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    module = Tracker(
        *("log_metrics", "set_tag"),
        active_run=lambda: run if threading.get_ident() == job else None,
        MlflowClient=lambda: client,
    )
    lose_one(module, background=True)
    assert [keywords for _, keywords in module.of("log_metrics")] == [
        {"step": step, "run_id": "r1"} for step in range(3)
    ]
    assert client.of("set_tag")[0][0][:2] == ("r1", "ckptcheck.HIS001")
    assert not module.of("set_tag")


def test_mlflow_without_a_run_is_not_made_to_begin_one() -> None:
    module = Tracker("log_metrics", "set_tag", active_run=lambda: None)
    with pytest.warns(SyncWarning, match="mlflow has no active run"):
        run_syncs(Watch(Engine(), metrics=module))
    assert not module.calls


def test_a_lasting_error_is_not_ok_and_one_that_is_over_is() -> None:
    rows: list[Mapping[str, float]] = []
    engine, trainer = Engine(), Trainer()
    watch = Watch(engine, metrics=lambda values, step: rows.append(values), on=lambda finding: None)
    for step in range(9):
        engine.deaf = (NAMES[0],) if step in (3, 4, 5) else ()
        with watch(step=step) as sync:
            engine.update(sync.sent(trainer.export()))
        trainer.step()
    assert [row["ckptcheck/ok"] for row in rows] == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert sum(row["ckptcheck/errors"] for row in rows) == 1
    assert {row["ckptcheck/coverage"] for row in rows} == {1.0}
    assert {row["ckptcheck/blind"] for row in rows} == {0.0}


def test_prometheus_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ckptcheck.prom"
    lose_one(f"prometheus:{path}")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert {"ckptcheck_step 2.0", "ckptcheck_ok 0.0", "ckptcheck_sent 6.0", "# TYPE ckptcheck_ok gauge"} <= set(lines)
    assert lines[-1] == 'ckptcheck_findings_total{code="HIS001",name="stale-in-engine",severity="error"} 1'
    kinds = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]+"(,[a-z]+="[^"]+")*\})? -?[0-9.e+-]+', line) for line in kinds)


def test_a_webhook_gets_each_finding() -> None:
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lose_one(f"http://127.0.0.1:{server.server_port}/services/T/B", background=True)
        server.shutdown()
    (body,) = bodies
    assert (body["code"], body["severity"], body["step"], body["key"]) == ("HIS001", "error", 2, NAMES[0])
    assert body["text"] == body["content"]
    assert body["text"].startswith(
        "ckptcheck: error HIS001 stale-in-engine, sync of step 2: step 2: 1 tensor of the engine"
    )


def test_a_tracker_that_fails_never_reaches_the_job() -> None:
    def fail(values: Any, step: int) -> None:
        raise OSError("no network")

    rows: list[int] = []
    with pytest.warns(SyncWarning, match="could not send its numbers: OSError: no network"):
        run_syncs(Watch(Engine(), metrics=[fail, lambda values, step: rows.append(step)]))
    assert rows == [0, 1, 2]


def test_a_watch_that_is_off_sends_nothing() -> None:
    rows: list[int] = []
    run_syncs(Watch(Engine(), enabled=False, metrics=lambda values, step: rows.append(step)))
    assert rows == []


@pytest.mark.parametrize("metrics", ["tensorboard", "wand", 3])
def test_what_takes_no_metrics_is_refused(metrics: Any) -> None:
    with pytest.raises(CkptcheckError, match=r"no metrics"):
        open_sinks(metrics)


# --- the real packages, where they are installed ---


@pytest.mark.parametrize("background", [False, True])
def test_the_real_wandb(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, background: bool) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = wandb.init(project="watch", dir=tmp_path)
    try:
        lose_one("wandb", background)
        run.log({"loss": 1.0}, step=0)
        run.log({"loss": 0.5}, step=1)
        run.log({"loss": 0.4}, step=2)  # writes the row before
        assert run.summary["ckptcheck/sent"] == 6
        assert run.summary["loss"] == 0.5
    finally:
        run.finish()


def test_the_real_trackio(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = pytest.importorskip("trackio")
    logged: list[Any] = []
    monkeypatch.setattr(trackio, "log", lambda metrics, step=None: logged.append((metrics, step)))
    alerts: list[Any] = []
    monkeypatch.setattr(trackio, "alert", lambda title, text=None, level=None: alerts.append((title, level)))
    lose_one("trackio")
    assert [step for _, step in logged] == [0, 1, 2]
    assert alerts == [("HIS001 stale-in-engine", trackio.AlertLevel.ERROR)]


@pytest.mark.parametrize("background", [False, True])
def test_the_real_mlflow(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, background: bool) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    mlflow.set_experiment("watch")
    with mlflow.start_run() as run:
        lose_one("mlflow", background)
    client = mlflow.MlflowClient()
    assert [point.step for point in client.get_metric_history(run.info.run_id, "ckptcheck/sent")] == [0, 1, 2]
    assert "HIS001" in " ".join(client.get_run(run.info.run_id).data.tags)


@pytest.mark.parametrize("background", [False, True])
def test_the_real_summary_writer(tmp_path: Any, background: bool) -> None:
    tensorboard = pytest.importorskip("tensorboardX")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        lose_one(writer, background)
    (events,) = tmp_path.iterdir()
    assert b"ckptcheck/engine_changed" in events.read_bytes()
