"""A server that is named twice would be held against itself: it is refused, by whatever names it goes."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.refit.running_servers.trace import ServerEvidence
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.servers.client import ServerClient, _here
from ckptcheck.live.runtime.servers.dedupe import refuse_same_place
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from tests.doubles.junk_server import Answer, JunkServer, sglang, vllm


def no_trainer(*_: object) -> Any:
    raise AssertionError("no trainer is needed")


def attached(*urls: str, **more: Any) -> ServerEvidence:
    return attach_to_servers(None, AttachOptions(urls, no_trainer, Timeouts(score=5), **more), lambda _: None)


@pytest.mark.parametrize(
    "other",
    [
        "http://127.0.0.1:{port}/",
        "127.0.0.1:{port}",
        "http://localhost:{port}",
        "http://LOCALHOST:{port}//",
        "http://[::1]:{port}",
        "http://127.0.0.2:{port}",
    ],
)
def test_by_two_names(other: str) -> None:
    with JunkServer(sglang()) as server, pytest.raises(CkptcheckError) as caught:
        attached(server.url, other.format(port=server.url.rpartition(":")[2]))
    assert caught.value.message.endswith("a server always agrees with itself") or (
        caught.value.message.startswith(f"{server.url} and ")
        and caught.value.message.endswith(" are one server, and it always agrees with itself")
    )
    assert server.asked == [], "it is not even asked"


def test_by_the_same_name_and_also_beside_a_checkpoint() -> None:
    with JunkServer(sglang()) as one, JunkServer(sglang()) as two, pytest.raises(CkptcheckError) as caught:
        attached(two.url, one.url, one.url)
    assert caught.value.message == f"{one.url} is named twice, and a server always agrees with itself"
    assert (one.asked, two.asked) == ([], [])


def test_other_ports_and_other_paths_are_other_servers() -> None:
    refuse_same_place([ServerClient(f"http://127.0.0.1:30000{path}") for path in ("", "/a", "/b")])
    refuse_same_place([ServerClient(f"http://127.0.0.1:{port}") for port in (30000, 30001)])
    refuse_same_place([ServerClient("http://192.0.2.1:30000", remote=True), ServerClient("http://127.0.0.1:30000")])
    with pytest.raises(CkptcheckError, match="are one server"):
        refuse_same_place([ServerClient("http://127.0.0.1"), ServerClient("http://localhost:80/")])
    assert (_here("192.0.2.1"), _here("0.0.0.0"), _here("::1")) == (False, True, True)


def told(**more: Any) -> dict[str, Answer]:
    """An SGLang that says more of itself."""
    answers = sglang()
    return {**answers, "/server_info": {**answers["/server_info"], **more}}


def instance(number: str) -> dict[str, Answer]:
    """A vLLM that says which instance it is."""
    answers = vllm()
    config = answers["/server_info"]["vllm_config"]
    return {**answers, "/server_info": {"vllm_config": {**config, "instance_id": number}}}


TOOK = {"load_weight": 0.5, "scheduler_e2e": 8.123456789, "tokenizer_e2e": 11.987654321, "cuda_graph": {}}


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        (told(startup_time=TOOK), told(startup_time=TOOK), True),
        (told(startup_time=TOOK), told(startup_time={**TOOK, "tokenizer_e2e": 11.987654322}), False),
        (told(startup_time=TOOK), told(), False),
        (told(startup_time={}), told(startup_time={}), False),
        (told(startup_time={**TOOK, "scheduler_e2e": 0.0}), told(startup_time={**TOOK, "scheduler_e2e": 0.0}), False),
        (instance("1795301946762800236"), instance("1795301946762800236"), True),
        (instance("1795301946762800236"), instance("1795301946762800237"), False),
    ],
)
def test_behind_two_ports(here: dict[str, Answer], there: dict[str, Answer], same: bool) -> None:
    """As a tunnel shows it: another port, and the same server says that it is the same."""
    with JunkServer(here) as one, JunkServer(there) as other:
        if not same:
            assert attached(one.url, other.url).not_compared == {}
            return
        with pytest.raises(CkptcheckError) as caught:
            attached(one.url, other.url)
        written = [path for _, path, _ in (*one.asked, *other.asked) if "update" in path or "rpc" in path]
    assert caught.value.message == f"{one.url} and {other.url} lead to one server, and it always agrees with itself"
    assert written == []


@pytest.mark.parametrize("took", [3, "long", [1], {"scheduler_e2e": "8", "tokenizer_e2e": None}])
def test_a_start_that_is_told_otherwise_costs_nothing_else(took: Any) -> None:
    with JunkServer(told(startup_time=took)) as server:
        info = detect_engine(ServerClient(server.url), seconds=5).info(seconds=5)
    assert (info.version, info.instance) == ("0.5.23", "")
