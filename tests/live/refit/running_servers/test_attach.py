"""What an attached check comes to where something on the way is missing, dies, or is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.running_servers import probe as attaching
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.refit.running_servers.probe import ProbeSettings
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.engines.base import WeightPart
from ckptcheck.live.runtime.environments.interpreter import Interpreter
from ckptcheck.live.runtime.servers import reference
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from tests.compare.test_identity import load_all
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.junk_server import Answer, JunkServer, last, sglang, status, vllm
from tests.factories.attached_servers import build_evidence
from tests.paths import ROOT

RULES = rule_loader.load_rules()
TINY = ROOT / "fixtures/checkpoints/tiny-llama-sharded"
ASKED = ProbeSettings(((8, 9, 10),), seconds=5)


def no_trainer(*_: object) -> Any:
    raise CkptcheckError("the environment megatron is not installed")


def held(url: str, **more: Any) -> Report:
    """Hold a server against a checkpoint, where no engine can be started."""
    options = AttachOptions([url], no_trainer, Timeouts(score=5), engine_python=Path("/nowhere/python"), **more)
    return run_rules(attach_to_servers(open_checkpoint(str(TINY)), options, lambda _: None), RULES)


def replicas(*servers: JunkServer) -> Report:
    options = AttachOptions([server.url for server in servers], no_trainer, Timeouts(score=1))
    return run_rules(attach_to_servers(None, options, lambda _: None), RULES)


def cut(request: BaseHTTPRequestHandler) -> None:
    """Say nothing and close the line, as a process that dies does."""


def weights(server: JunkServer, *, kept: bool = False) -> Answer:
    """A checker that overwrites what it has when it is told to. kept: it only says so."""
    held = {"model.norm.weight": "6ff2d2ca1acd52bf", "lm_head.weight": "7c31a78b8580fe74"}

    def check(request: BaseHTTPRequestHandler) -> None:
        if last(request)["action"] != "checksum":
            held.update({} if kept else dict.fromkeys(held, "dead"))
        status(200, {"success": True, "ranks": [{"checksums": held}]})(request)

    server.answers["/weights_checker"] = check
    return check


def written(server: JunkServer) -> Report:
    known = detect_engine(ServerClient(server.url), seconds=5)
    *_, seen = attaching.overwrite_and_update(known, attaching.probe_server(known, ASKED), Path("/models/tiny"), ASKED)
    return run_rules(build_evidence("tiny", seen, ASKED.sequences), RULES)


def test_nothing_that_was_asked_for_could_be_compared() -> None:
    with JunkServer(sglang()) as server:
        report = held(server.url)
        only = held(server.url, check_weights=False)
    assert (report.verdict, report.exit_code("error"), report.passed) == ("incomplete", 2, ())
    assert {code for code, _ in report.skipped} == {"REF030", "REF031"}
    (why,) = {why for _, why in report.crashed}
    assert why.startswith(
        f"could not compare {server.url} with {TINY}: no sglang could be started with it to compare: "
    )
    assert why.endswith("; no trainer scored it: the environment megatron is not installed")
    assert (only.verdict, [code for code, _ in only.skipped]) == ("incomplete", ["REF031"])


def test_every_server_has_to_be_held_against_something() -> None:
    refusal = status(403, {"error": "Forbidden"})
    with (
        JunkServer(sglang()) as one,
        JunkServer(sglang()) as same,
        JunkServer(sglang(weights_checker=refusal, generate=refusal)) as mute,
        JunkServer(vllm()) as other,
    ):
        assert replicas(one, same).verdict == "clean"
        for odd, words in (
            (mute, "/generate refuses with 403"),
            (other, "no other server that answers has its engine"),
        ):
            report = replicas(one, same, odd)
            assert (report.verdict, report.findings) == ("incomplete", ())
            assert f"could not compare {odd.url}: " in report.crashed[0][1]
            assert words in report.crashed[0][1]


def test_one_that_dies_midway_does_not_take_the_others_findings_along() -> None:
    behind = sglang()
    behind["/weights_checker"] = {"success": True, "ranks": [{"checksums": {"model.norm.weight": "00"}}]}

    def dying(request: BaseHTTPRequestHandler) -> None:
        third.answers = {"/model_info": third.answers["/model_info"], "/generate": cut}

    with JunkServer(sglang()) as one, JunkServer(behind) as other, JunkServer(sglang(weights_checker=dying)) as third:
        report = replicas(one, other, third)
    assert [finding.code for finding in report.findings] == ["REF028", "REF029"]
    assert report.findings[0].message.startswith(f"{third.url} generates no tokens: {third.url} cannot be reached: ")
    assert f"{one.url} and {other.url} differ" in report.findings[1].message


def test_a_line_that_is_cut_is_no_death_of_who_answers_after_it() -> None:
    with JunkServer(sglang(weights_checker=cut)) as one, JunkServer(sglang()) as other:
        report = replicas(one, other)
        assert (report.verdict, report.findings) == ("clean", ())
        seen = attaching.probe_server(detect_engine(ServerClient(one.url), seconds=5), ASKED)
    assert (seen.dead_reason, list(seen.refusals), len(seen.scores)) == ("", ["checksums"], 1)


def test_a_server_that_fails_after_it_was_overwritten_is_a_finding() -> None:
    def update(request: BaseHTTPRequestHandler) -> None:
        server.answers.clear()  # from now on it knows nothing
        status(500, {"error": "cannot load"})(request)

    with JunkServer(sglang(update_weights_from_disk=update)) as server:
        weights(server)
        report = written(server)
    assert [finding.message for finding in report.findings if finding.code == "REF034"] == [
        f'{server.url} overwrote its weights, and it is unknown whether it loaded tiny: {{"error": "cannot load"}}'
    ]
    bodies = [(path, body) for method, path, body in server.asked if method == "POST" and path != "/generate"]
    assert bodies[1] == ("/weights_checker", {"action": "reset_tensors"})
    assert bodies[3][0] == "/update_weights_from_disk"
    assert bodies[3][1] == {"model_path": "/models/tiny", "weight_version": "ckptcheck", "flush_cache": True}


def test_an_update_that_loads_nothing_and_one_that_kills() -> None:
    def kill(request: BaseHTTPRequestHandler) -> None:
        server.answers["/generate"] = cut
        status(200, {"success": True})(request)

    for update, words in (
        (
            {"success": True},
            "reported success, but did not load 2 of 2 tensors again: lm_head.weight, model.norm.weight",
        ),
        (kill, "overwrote its weights, and it is unknown whether it loaded tiny: "),
    ):
        with JunkServer(sglang(update_weights_from_disk=update)) as server:
            weights(server)
            report = written(server)
        (message,) = [finding.message for finding in report.findings if finding.code == "REF034"]
        assert words in message


def test_a_checker_that_overwrites_nothing_proves_nothing() -> None:
    with JunkServer(sglang(update_weights_from_disk={"success": True})) as server:
        weights(server, kept=True)
        report = written(server)
        assert "/update_weights_from_disk" not in [path for _, path, _ in server.asked]
    assert ("REF034", f"{server.url} answers that it overwrote its weights, but all are unchanged") in report.skipped
    with JunkServer(vllm(weight_checker={"checksums": {}})) as server:
        assert ("REF034", f"{server.url} gives no checksums") in written(server).skipped


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "interrupted by SIGTERM", 2)],
)
def test_interrupted_while_the_weights_are_gone(number: signal.Signals, words: str, code: int) -> None:
    reached = threading.Event()

    def update(request: BaseHTTPRequestHandler) -> None:
        reached.set()
        server.hang(request)

    with JunkServer(sglang(update_weights_from_disk=update)) as server, JunkServer(sglang()) as untouched:
        weights(server)
        weights(untouched)
        command = [sys.executable, "-m", "ckptcheck", "attach", server.url, untouched.url, "--format", "json"]
        command += ["--source", str(TINY), "--allow-write"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert reached.wait(60)
            process.send_signal(number)
            told, talk = process.communicate(timeout=60)
        assert "reset_tensors" not in [
            body["action"] for _, path, body in untouched.asked if path == "/weights_checker"
        ]
    report = json.loads(told)
    assert (process.returncode, report["verdict"]) == (code, "incomplete"), talk
    assert [finding["message"] for finding in report["findings"]] == [
        f"{server.url} overwrote its weights, and it is unknown whether it loaded {TINY}: the update was interrupted"
    ]
    assert {each["error"] for each in report["crashed"]} == {f"could not compare the servers: {words}"}


KEPT = ("attach", "http://127.0.0.1:1", "--set", "keep=on")


def test_what_is_kept_and_where_there_is_nothing_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CkptcheckError, match="cannot be reached"):
        build_app("attach")([*KEPT, "--source", str(TINY)], standalone_mode=False)
    assert "nothing was written that could be kept\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    run_of_megatron = str(ROOT / "fixtures/megatron/tp2-pp2")
    with pytest.raises(CkptcheckError, match="cannot be reached"):
        build_app("attach")([*KEPT, "--source", run_of_megatron], standalone_mode=False)
    (kept,) = tmp_path.iterdir()
    assert f"kept {kept}\n" in capsys.readouterr().err
    assert (kept / "source" / "config.json").is_file()


def test_the_reference_is_not_somebody_elses_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with JunkServer(sglang()) as other:
        monkeypatch.setattr(reference, "_free", lambda: int(other.url.rpartition(":")[2]))
        ours = Interpreter("sglang", Path(sys.executable), {}, {})
        monkeypatch.setattr(reference, "find_interpreter", lambda *_: ours)
        with pytest.raises(CkptcheckError, match="which was free, another server answers: it serves /models/tiny"):
            reference.ReferenceServer("sglang", TINY, timeout=20)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{url}", "{url}", "--trainer", "megatron"), "--trainer has no effect where servers are"),
        (("{url}", "{url}", "--allow-write"), "--allow-write has no effect where servers are"),
        (
            ("{url}", "--source", "{tiny}", "--allow-write", "--no-check-weight-update-equal"),
            "--allow-write needs the servers' checksums",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with JunkServer(sglang()) as server, pytest.raises(CkptcheckError) as caught:
        build_app("attach")(
            ["attach", *(each.format(tiny=TINY, url=server.url) for each in arguments)], standalone_mode=False
        )
    assert caught.value.message.startswith(words)
    assert server.asked == []


def summing(server: JunkServer, tensors: dict[str, Any]) -> Answer:
    """A vLLM whose workers have our extension, which holds these tensors as the fake engine fuses them."""
    engine = FakeEngine(tensors)

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = last(request)
        asked.append(body["method"])
        if body["method"] == "ckptcheck_digest_tensors":
            entries = [
                [each.name, each.kind, each.dtype, each.shape, each.nbytes, "", each.storage, each.opaque]
                for each in engine.digest_tensors().values()
            ]
            status(200, {"results": [{"rank": 0, "entries": entries}]})(request)
            return
        (by_rank,) = body["args"]
        parts = [
            WeightPart("", tuple(whole), tuple(origin), 0, name, begin, tuple(shape), pitch)
            for name, begin, shape, pitch, origin, whole in by_rank[0]
        ]
        status(200, {"results": [engine.sum_parts(parts)]})(request)

    asked: list[str] = []
    return answer


def with_extension(name: str) -> dict[str, Any]:
    parallel = {"tensor_parallel_size": 1, "is_moe_model": False, "worker_extension_cls": name}
    return {"vllm_config": {"model_config": {"dtype": "torch.float32"}, "parallel_config": parallel}}


def test_a_server_with_our_extension_is_asked_whether_it_holds_the_checkpoint() -> None:
    tensors = load_all(TINY)
    named = with_extension("ckptcheck_worker.vllm_worker.Extension")
    identity = ckptcheck.identity(TINY).identity
    with JunkServer(vllm(server_info=named)) as server:
        server.answers["/collective_rpc"] = summing(server, tensors)
        report = held(server.url)
        assert report.identities == {"checkpoint": identity, server.url: identity}
        (section,) = (each for each in report.sections if "by their identity" in each.title)
        assert section.rows == ((server.url, "yes", ""),)
        other = {name: values + (name == "model.norm.weight") for name, values in tensors.items()}
        server.answers["/collective_rpc"] = summing(server, other)
        report = held(server.url)
        assert report.identities == {"checkpoint": identity}
        (section,) = (each for each in report.sections if "by their identity" in each.title)
        assert section.rows[0][1] == "not known"
        for junk in (status(500, {"error": "no"}), {"results": [{"rank": 0}]}, {"results": []}, {"results": [7]}):
            server.answers["/collective_rpc"] = junk
            report = held(server.url)
            assert report.identities == {"checkpoint": identity}
            assert not [error for _, error in report.crashed if "Error" in error]


def test_a_server_without_our_extension_is_not_asked_for_it() -> None:
    for info in (with_extension(""), with_extension("areal.engine.Extension")):
        with JunkServer(vllm(server_info=info)) as server:
            server.answers["/collective_rpc"] = lambda request: pytest.fail("asked")
            assert held(server.url).identities == {}
