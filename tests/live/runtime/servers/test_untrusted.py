"""Servers that refuse, hang, lie or are no engine at all: a finding or one sentence, never our death."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.servers import client as clients
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from ckptcheck.live.runtime.servers.errors import BadResponse, Rejected, RequestTimeout, Unreachable
from tests.doubles.junk_server import Answer, JunkServer, sglang, status, vllm

RULES = rule_loader.load_rules()


def no_trainer(*_: object) -> Any:
    raise AssertionError("no trainer is needed")


def reported(*servers: JunkServer, timeout: float = 1.0) -> Report:
    """Attach to servers without a checkpoint, and report. One alone is held against a twin that answers alike."""
    with ExitStack() as stack:
        twins = [stack.enter_context(JunkServer(servers[0].answers))] if len(servers) == 1 else []
        wanted = AttachOptions([server.url for server in (*servers, *twins)], no_trainer, Timeouts(score=timeout))
        return run_rules(attach_to_servers(None, wanted, lambda _: None), RULES)


@pytest.mark.parametrize("answers", [sglang(), vllm()], ids=["sglang", "vllm"])
def test_a_sound_server_is_read_whole(answers: Mapping[str, Answer]) -> None:
    with JunkServer(answers) as server:
        report = reported(server)
    assert (report.verdict, report.findings, report.skipped) == ("clean", (), ())
    assert {method for method, path, _ in server.asked if path in ("/weights_checker", "/weight_checker")} == {"POST"}
    written = ("/update_weights_from_disk", "/collective_rpc", "/flush_cache", "/reset_prefix_cache")
    assert not [path for _, path, _ in server.asked if path in written], "it is only read"


def test_an_old_sglang_is_known_by_its_old_name() -> None:
    answers = sglang()
    answers["/get_model_info"] = answers.pop("/model_info")
    with JunkServer(answers) as server:
        assert detect_engine(ServerClient(server.url), seconds=5).info(seconds=5).model == "/models/tiny"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (status(200, b"<html><body>Log in</body></html>"), BadResponse, "which is not what an engine says"),
        (status(200, {"model_path": 7, "is_generation": "yes"}), BadResponse, "Expected `str`, got `int`"),
        (status(200, b"[" * 100_000), BadResponse, "which is not what an engine says"),
        (status(200, b"\xff\xfe"), BadResponse, "which is not what an engine says"),
        (status(401, {"error": "Unauthorized"}), Rejected, "refuses with 401"),
        (status(503, b""), Rejected, "refuses with 503"),
        (status(302, b""), Rejected, "refuses with 302"),
        (lambda request: request.wfile.write(b"nonsense\r\n\r\n"), Unreachable, "cannot be reached: BadStatusLine"),
        (lambda request: None, Unreachable, "cannot be reached"),
    ],
)
def test_what_is_no_answer_is_said_in_a_sentence(answer: Answer, kind: type[Exception], words: str) -> None:
    with JunkServer({"/model_info": answer}) as server, pytest.raises(kind) as caught:
        ServerClient(server.url).get("/model_info", dict[str, str], timeout=5)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_time_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    server = JunkServer({})
    server.answers = {"/hang": server.hang, "/trickle": server.trickle, "/huge": status(200, b" " * 5000)}
    with server:
        asked = ServerClient(server.url)
        for path in ("/hang", "/trickle"):
            with pytest.raises(RequestTimeout, match=r"did not answer within 0\.3 seconds"):
                asked.get(path, object, timeout=0.3)
        assert server.trickled < 1000, "the line was cut in the middle of an answer, and nobody waited for its end"
        monkeypatch.setattr(clients, "LARGEST", 1000)
        with pytest.raises(BadResponse, match="answers more than 1,000 bytes"):
            asked.get("/huge", object, timeout=5)


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
        detect_engine(ServerClient(f"127.0.0.1:{port}"), seconds=5)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://8.8.8.8:30000", "is not on this machine"),
        ("http://[2001:db8::1]:30000", "is not on this machine"),
        ("ftp://127.0.0.1", "is no address of a server"),
        ("http://127.0.0.1:port", "is no address"),
        ("30000", "30000 is no address of a server"),
        (":30000", "is no address of a server"),
        ("http:/127.0.0.1:30000", "http:/127.0.0.1:30000 is no address of a server"),
        ("", "an empty text is no address of a server"),
        ("http://me:secret@127.0.0.1", "is not accepted"),
        ("http://nowhere.invalid", "cannot be resolved"),
    ],
)
def test_only_addresses_of_this_machine(url: str, words: str) -> None:
    with pytest.raises(CkptcheckError) as caught:
        ServerClient(url)
    assert words in caught.value.message
    assert "secret" not in caught.value.message


def test_a_name_that_leads_elsewhere_the_second_time_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with JunkServer(sglang()) as server:
        asked = ServerClient(server.url)
        monkeypatch.setattr(clients, "_loopback", lambda address: False)
        with pytest.raises(Unreachable, match="is not on this machine any more"):
            asked.get("/model_info", object, timeout=5)
    assert server.asked == []


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with JunkServer(sglang()) as server:
        assert detect_engine(ServerClient(server.url), seconds=5).engine == "sglang"


def test_another_program_is_not_taken_for_an_engine() -> None:
    with JunkServer({"/": {"hello": "world"}}) as server, pytest.raises(CkptcheckError) as caught:
        detect_engine(ServerClient(server.url), seconds=5)
    assert "answers, but neither as SGLang (/model_info) nor as vLLM (/version) does" in caught.value.message


def test_a_web_page_is_not_read_aloud() -> None:
    page = b"\n<!DOCTYPE HTML><html><body>Error code: 404</body></html>"
    with JunkServer({"/model_info": status(404, page), "/version": status(404, page)}) as server:
        with pytest.raises(CkptcheckError) as caught:
            detect_engine(ServerClient(server.url), seconds=5)
        assert caught.value.message == (
            f"{server.url} answers, but neither as SGLang (/model_info) nor as vLLM (/version) does: /version refuses with 404"
        )
        server.answers["/model_info"] = status(200, page)
        with pytest.raises(BadResponse, match="/model_info answers a web page, which is not what an engine says"):
            ServerClient(server.url).get("/model_info", dict[str, str], timeout=5)


def test_a_server_without_tls() -> None:
    with JunkServer(sglang()) as server, pytest.raises(Unreachable) as caught:
        detect_engine(ServerClient(server.url.replace("http:", "https:")), seconds=5)
    assert caught.value.message.endswith(" speaks no TLS")
    assert caught.value.hint == f"write it as {server.url}"


def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCHECK_API_KEY", "sesame")
    with JunkServer(vllm()) as server:
        reported(server)
    assert set(server.tokens) == {"Bearer sesame"}


def test_a_server_that_refuses_weights_is_skipped_with_its_reason() -> None:
    refusal = status(403, {"error": "Forbidden"})
    with JunkServer(sglang(weights_checker=refusal, generate=refusal)) as server:
        report = reported(server)
    assert report.findings == ()
    assert [
        (code, why.startswith("could not compare http://127.0.0.1:"), "403" in why, "administrator" in why)
        for code, why in report.skipped
    ] == [("REF029", True, True, True)]


def test_a_vllm_out_of_dev_mode_is_held_by_its_logprobs_alone() -> None:
    answers = vllm()
    for path in ("/weight_checker", "/weight_info", "/server_info"):
        del answers[path]
    with JunkServer(answers) as server:
        report = reported(server)
    assert (report.verdict, report.counts["tensors"]) == ("clean", 0)


@pytest.mark.parametrize("engine", [sglang, vllm])
def test_a_port_that_answers_while_the_scheduler_is_dead(engine: Any) -> None:
    path = {"sglang": "generate", "vllm": "v1/completions"}[engine.__name__]
    for dead in (lambda server: server.hang, lambda _: status(500, {"error": "EngineCore encountered an issue"})):
        server = JunkServer(engine())
        server.answers[f"/{path}"] = dead(server)
        with server:
            report = reported(server, timeout=0.3)
        assert {finding.code for finding in report.findings} == {"REF028"}
        assert f"{server.url} generates no tokens" in report.findings[0].message
        assert ("REF029", f"{server.url} generates no tokens") in report.skipped


def test_checksums_and_logprobs_that_are_none(tmp_path: object) -> None:
    for changes in (
        {"weights_checker": {"success": False, "message": "Torch not compiled with CUDA enabled"}},
        {"weights_checker": {"success": True, "ranks": [{"checksums": {"a": 5}}]}},
        {"weights_checker": status(200, b"<html>")},
    ):
        with JunkServer(sglang(**changes)) as server:
            report = reported(server)
        assert (report.verdict, report.findings) == ("clean", ()), (
            changes
        )  # logprobs agree, and that is all that is said
    for answer in ([], [{"meta_info": {}}], [{"meta_info": {"input_token_logprobs": [[None, 0, None]]}}] * 3):
        with JunkServer(sglang(generate=answer)) as server:
            report = reported(server)
        assert (report.verdict, report.findings) == ("clean", ()), answer  # weights agree; it answers, so it lives


def test_two_replicas_of_which_one_is_behind() -> None:
    behind = sglang()
    behind["/weights_checker"] = {
        "success": True,
        "ranks": [{"checksums": {"model.norm.weight": "00", "lm_head.weight": "01"}}],
    }
    with JunkServer(sglang()) as one, JunkServer(behind) as other:
        report = reported(one, other)
    assert [(finding.code, finding.key) for finding in report.findings] == [("REF029", "lm_head.weight")]


@pytest.mark.slow
def test_the_command() -> None:
    def attach(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ckptcheck", "attach", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with (
        JunkServer(sglang()) as one,
        JunkServer(sglang()) as two,
        JunkServer(vllm()) as other,
        JunkServer({"/": b"<html>"}) as page,
    ):
        done = attach(one.url, two.url, "-v")
        assert (done.returncode, "✓ clean" in done.stdout) == (0, True), done.stderr
        assert f"sglang 0.5.23 at {one.url}" in done.stdout
        same = one.url.replace("127.0.0.1", "localhost")
        done = attach(one.url, same)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"ckptcheck: {one.url} and {same} are one server, and it always agrees with itself\n"
            "           name every server once\n"
        )
        done = attach(one.url, two.url, other.url)
        assert (done.returncode, f"could not compare {other.url}: no other server that answers" in done.stdout) == (
            2,
            True,
        )
        done = attach(one.url, page.url)
        assert (done.returncode, done.stdout) == (2, "")
        assert "answers, but neither as SGLang (/model_info) nor as vLLM (/version) does" in done.stderr
    done = attach(one.url, two.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be reached: Connection refused" in done.stderr


def test_one_server_needs_something_to_be_held_against() -> None:
    with pytest.raises(CkptcheckError, match="nothing to compare one server with"):
        attach_to_servers(None, AttachOptions(["http://127.0.0.1:1"], no_trainer), lambda _: None)
    with pytest.raises(CkptcheckError, match="--allow-write needs the checkpoint"):
        attach_to_servers(None, AttachOptions(["http://127.0.0.1:1"] * 2, no_trainer, allow_write=True), lambda _: None)


@pytest.mark.parametrize("key", ["secret\n", "secret\r\nX: y", "secret‐key"])
def test_a_key_that_no_header_takes_is_in_no_message(key: str) -> None:
    with JunkServer(sglang()) as server, pytest.raises(CkptcheckError) as refusal:
        ServerClient(server.url, key=key).get("/model_info", dict)
    assert refusal.value.message == "CKPTCHECK_API_KEY has characters that no key has"
