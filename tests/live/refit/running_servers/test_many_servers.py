"""A fleet of servers is asked side by side; a slow, a lost and a stale one are named, and hold up no other."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.servers import dedupe
from tests.doubles.junk_server import JunkServer, sglang, status

STALE, SLOW = 7, 11
ALIVE = [{"output_ids": [1], "meta_info": {"output_token_logprobs": [[-1.0, 1, None]], "cached_tokens": 0}}]


@pytest.mark.skipif(sys.platform != "linux", reason="one server answers for all addresses of 127.0.0.0/8, as on Linux")
@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.matrix)])
def test_a_fleet(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # one server plays all, at as many addresses of this machine
    monkeypatch.setattr(dedupe, "refuse_same_place", lambda clients: None)
    answers = sglang(generate=ALIVE)
    checksums = answers["/weights_checker"]

    def check(request: BaseHTTPRequestHandler) -> None:
        place = request.headers["Host"].partition(":")[0]
        if place == _address(SLOW):
            server.hang(request)
        changed = {"lm_head.weight": "00"} if place == _address(STALE) else {}
        [rank] = checksums["ranks"]
        status(200, {**checksums, "ranks": [{**rank, "checksums": rank["checksums"] | changed}]})(request)

    with JunkServer({**answers, "/weights_checker": check}, "0.0.0.0") as server:
        port = server.url.rpartition(":")[2]
        urls = [f"http://{_address(at)}:{port}" for at in range(number)]
        lost = "http://127.0.0.1:1"
        options = AttachOptions([*urls, lost], _no_trainer, Timeouts(score=6), check_logprobs=False)
        evidence = attach_to_servers(None, options, lambda _: None)
        report = run_rules(evidence, rule_loader.load_rules())
    assert [state.url for state in evidence.servers] == [*urls, lost], "in the order of the command"
    found = {finding.code: finding.message for finding in report.findings}
    assert list(found) == ["REF028", "REF029"]
    assert found["REF028"].startswith(f"{lost} generates no tokens: {lost} cannot be reached")
    assert found["REF029"].startswith(f"{urls[0]} and {urls[STALE]} differ in 1 of 2 tensors: lm_head.weight")
    assert found["REF029"].endswith(f"; {number - 2:,} servers are like the first, 1 like the second")
    assert report.verdict == "incomplete"
    assert f"could not compare {urls[SLOW]}: " in report.crashed[0][1]


def _address(number: int) -> str:
    return f"127.0.{1 + number // 200}.{1 + number % 200}"


def _no_trainer(*_: object) -> Any:
    raise AssertionError("no trainer is needed")
