"""A watch that asks running servers: by their checksums, by their version, and never for long."""

from __future__ import annotations

import warnings

import pytest

from ckptcheck.watch import SyncWarning, Watch, engine_side, servers
from tests.doubles.junk_server import JunkServer, sglang, vllm


def test_servers_are_asked_for_their_checksums_and_versions() -> None:
    with JunkServer(sglang()) as one, JunkServer(sglang()) as other:
        watch = Watch(servers(one.url, other.url, seconds=5))
        for server in (one, other):
            server.answers["/model_info"] = {**server.answers["/model_info"], "weight_version": "7"}
        for step in range(2):
            one.answers["/weights_checker"]["ranks"][0]["checksums"]["lm_head.weight"] = f"{step:016x}"
            with pytest.warns(SyncWarning, match="HIS005") if step else warnings.catch_warnings(), watch(step=step):
                pass
    assert list(watch.last[1].held) == [
        "tp0/model.norm.weight", "tp0/lm_head.weight", "1.tp0/model.norm.weight", "1.tp0/lm_head.weight",
    ]  # fmt: skip
    assert watch.last[1].version == "7"


def test_a_version_that_nobody_gives_is_none() -> None:
    """SGLang and vLLM report "default" until somebody gives their weights a version; a job that does so expects it to move."""
    with JunkServer(sglang()) as server:
        watch, found = Watch(servers(server.url)), list[str]()
        watch.on = lambda finding: found.append(f"{finding.code} {finding.message}")
        for step, version in enumerate([None, None, None, "3", "4"]):
            server.answers["/weights_checker"]["ranks"][0]["checksums"]["lm_head.weight"] = f"{step:016x}"
            with watch(step=step, version=version):
                pass
    assert [sync.version for sync in watch.last] == [None, None, None, "default", "default"]
    assert found == ['HIS005 step 4: the engine\'s weight version did not change (it is still "default")']


def test_servers_that_report_no_version_do_not_show_in_it() -> None:
    numbered = sglang()
    numbered["/model_info"] = {**numbered["/model_info"], "weight_version": "1"}
    plain = vllm()
    del plain["/weight_info"]
    with JunkServer(plain) as one, JunkServer(numbered) as other, JunkServer(sglang()) as third:
        assert servers(one.url, other.url).version() == "1"
        assert servers(one.url).version() is None
        assert servers(one.url, other.url, third.url).version() == "1 and default"
    assert "/server_info" not in [path for _, path, _ in other.asked], "its scheduler is not asked"


def test_a_server_that_hangs_holds_up_no_sync_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with JunkServer(sglang()) as server:
        watch = Watch(servers(server.url))
        with watch(step=0):
            pass
        server.asked.clear()
        monkeypatch.setattr(engine_side, "SOON", 0.2)
        server.answers = dict.fromkeys(server.answers, server.hang)
        with pytest.warns(SyncWarning, match=r"did not answer within 0\.2 seconds"), watch(step=1):
            pass
        server.wait_for_requests(2)
    assert [path for _, path, _ in server.asked] == ["/model_info", "/model_info"], "once before, and once after"
