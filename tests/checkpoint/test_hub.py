"""Checkpoints on the Hub: real HTTP over the loopback interface, through the real huggingface_hub."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import HfApi, constants
from safetensors.numpy import save_file

import ckptcheck
from ckptcheck.checkpoint import hub as module
from ckptcheck.checkpoint import hub_requests as requests
from ckptcheck.checkpoint.header import FIRST_READ
from ckptcheck.checkpoint.hub import Repository
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.reporters import FORMATS, render
from tests.doubles.hub_server import HubServer, Way
from tests.limited_child import run_limited

NAME = "acme/tiny"
TARGET = f"hf://{NAME}"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """A machine without proxies, tokens and settings of its own, on which no wait is real; returns those asked for."""
    for name in list(os.environ):
        if name.upper().startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored_tokens"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    asked: list[float] = []
    monkeypatch.setattr(requests, "sleep", asked.append)
    return asked


@pytest.fixture
def hub(waits: list[float], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubServer]:
    """A Hub that has the checkpoint of `folder` as acme/tiny. The client is new, since it remembers the proxies."""
    huggingface_hub.close_session()
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.push(NAME, folder)
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three shards, the first of 8 MB."""
    path = tmp_path / "ckpt"
    (path / "nested").mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(SHARDS):
        tensors = {f"layers.{number}.{kind}": np.full((4, 8), number, np.float32) for kind in ("up", "down")}
        if number == 0:
            tensors["embed"] = np.zeros((1 << 17, 16), np.float32)
        save_file(tensors, path / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, shard)
    index = {"metadata": {"total_size": 8389376}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (path / "merges.txt").write_text("")
    save_file({"not": np.zeros(1)}, path / "nested" / "model.safetensors")
    return path


@pytest.mark.parametrize(
    "target", [TARGET, NAME, f"{TARGET}@main", f"{NAME}@v1.0", f"{TARGET}@refs/pr/1", f"{NAME}@sha"]
)
def test_the_same_as_the_folder(hub: HubServer, folder: Path, target: str) -> None:
    commits = hub.repos[NAME].commits
    commits["v1.0"] = commits["refs/pr/1"] = commits["main"]
    here, there = open_checkpoint(str(folder)), open_checkpoint(target.replace("sha", commits["main"]))
    assert there.shards == here.shards
    assert there.shards[SHARDS[0]].tensors["embed"].shape == (1 << 17, 16)
    assert there.index == here.index
    assert there.config == here.config
    assert there.files == here.files
    assert list(there.files) == sorted(here.files)
    assert there.counts == here.counts
    assert there.unread == {}
    assert there.source.local is None
    assert there.target == target.replace("sha", commits["main"])


@pytest.mark.parametrize("deep", [False, True])
def test_the_additional_chat_templates_too(hub: HubServer, folder: Path, deep: bool) -> None:
    inner = folder / "additional_chat_templates"
    (inner / "deeper").mkdir(parents=True)
    for name in ("rag.jinja", "notes.txt", "deeper/more.jinja"):
        (inner / name).write_text("{{ messages }}", encoding="utf-8")
    (folder / "nested" / "other.jinja").write_text("", encoding="utf-8")
    hub.push(NAME, folder)
    hub.deep = deep
    here, there = open_checkpoint(str(folder)), open_checkpoint(TARGET)
    assert [name for name in there.files if "/" in name] == ["additional_chat_templates/rag.jinja"]
    assert there.files == here.files
    assert there.source.read("additional_chat_templates/rag.jinja", 3, 8) == b"messages"
    assert here.source.read("additional_chat_templates/rag.jinja", 3, 8) == b"messages"


def test_reads_headers_only(hub: HubServer, folder: Path) -> None:
    checkpoint = open_checkpoint(TARGET)
    assert checkpoint.unread == {}
    for name in SHARDS:
        [request] = hub.seen(name, "cdn")
        assert request.range == f"bytes=0-{FIRST_READ - 1}"
        assert request.sent == min(FIRST_READ, (folder / name).stat().st_size)
    assert sum(request.sent for request in hub.seen()) < FIRST_READ + 5000 < (folder / SHARDS[0]).stat().st_size / 10


def test_one_request_for_each_of_many_shards(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    names = [f"model-{number:05}-of-00062.safetensors" for number in range(1, 63)]
    for name in names:
        save_file({name: np.zeros(3)}, folder / name)
    hub.push("acme/many", folder)
    assert list(open_checkpoint("hf://acme/many").shards) == names
    assert len(hub.seen("/api/")) == 2
    assert sorted(request.path.rpartition("/")[2] for request in hub.seen("/resolve/")) == names
    assert sorted(request.path.rpartition("/")[2] for request in hub.seen("/blobs/")) == names
    assert max(hub.connections.values()) < 40, "connections are used again"


def test_a_long_header_takes_a_second_request(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    save_file({f"layers.{number}.{'x' * 100}": np.zeros(1) for number in range(2000)}, folder / "model.safetensors")
    hub.push("acme/long", folder)
    there = open_checkpoint("hf://acme/long").shards["model.safetensors"]
    assert there == open_checkpoint(str(folder)).shards["model.safetensors"]
    first, second = hub.seen("/blobs/")
    assert len(there.tensors) == 2000
    assert first.range == f"bytes=0-{FIRST_READ - 1}"
    assert second.range is not None
    assert second.range.endswith(f"-{there.data_start - 1}")


def test_any_part_from_many_threads(hub: HubServer, folder: Path) -> None:
    repository = Repository(NAME, None, TARGET)
    whole = {name: (folder / name).read_bytes() for name in repository.files}
    parts = [(name, start, length) for name in whole for start in (0, 7, 100, 10**8) for length in (0, 1, 64, 10**6)]
    with ThreadPoolExecutor(16) as pool:
        read = list(pool.map(lambda part: repository.read(*part), parts))
    assert read == [whole[name][start : start + length] for name, start, length in parts]
    assert len(hub.seen("/resolve/")) == sum(length > 0 for _, _, length in parts)


def test_one_connection_for_one_file_after_the_other(hub: HubServer) -> None:
    repository = Repository(NAME, None, TARGET)
    for name, file in repository.files.items():
        if file.size:
            repository.read(name, 0, min(file.size, FIRST_READ))
    assert hub.connections == {"hub": 1, "cdn": 1}


def test_one_commit_throughout(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    before = hub.repos[NAME].commits["main"]
    checkpoint = open_checkpoint(TARGET)
    assert isinstance(checkpoint.source, Repository)
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    for name in SHARDS:
        save_file({"new": np.zeros(1)}, pushed / name)
    assert hub.push(NAME, pushed) != before
    assert checkpoint.source.commit == before
    assert checkpoint.shards == open_checkpoint(str(folder)).shards
    assert all(f"/resolve/{before}/" in request.path for request in hub.seen("/resolve/"))
    assert all("new" in shard.tensors for shard in open_checkpoint(TARGET).shards.values())


def test_lists_page_by_page(hub: HubServer, folder: Path) -> None:
    hub.page = 2
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert list(Repository(NAME, None, TARGET).files) == names
    assert [request.query.partition("&cursor=")[2] for request in hub.seen("/tree/")] == ["", "2", "4", "6"]


def test_lists_the_top_only(hub: HubServer, folder: Path) -> None:
    hub.deep = True
    assert Repository(NAME, None, TARGET).files == open_checkpoint(str(folder)).files


def test_lists_as_huggingface_hub_does(hub: HubServer) -> None:
    repository = Repository(NAME, None, TARGET)
    api = HfApi(endpoint=hub.url)
    assert repository.commit == api.model_info(NAME, revision="main").sha
    listed = {
        file.path: file.size for file in api.list_repo_tree(NAME, revision=repository.commit) if hasattr(file, "size")
    }
    assert listed == {name: file.size for name, file in repository.files.items()}
    ours, theirs = hub.seen("/tree/")
    assert ours.path == theirs.path


def test_follows_a_renamed_repository(hub: HubServer) -> None:
    hub.renamed["old/name"] = NAME
    checkpoint = open_checkpoint("hf://old/name")
    assert list(checkpoint.shards) == SHARDS
    assert checkpoint.unread == {}


@pytest.mark.parametrize("place", ["variable", "file"])
def test_the_token_goes_to_the_hub_alone(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    hub.tokens = hub.repos[NAME].readers = {"hf_secret"}
    hub.repos[NAME].private = True
    if place == "variable":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    else:
        (tmp_path / "token").write_text("hf_secret\n")
    checkpoint = open_checkpoint(TARGET)
    assert list(checkpoint.shards) == SHARDS
    assert checkpoint.unread == {}
    assert {request.token for request in hub.seen(server="hub")} == {"Bearer hf_secret"}
    assert len(hub.seen(server="cdn")) == 3
    assert {request.token for request in hub.seen(server="cdn")} == {None}


def test_no_token_where_the_user_wants_none(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens = {"hf_secret"}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert list(open_checkpoint(TARGET).shards) == SHARDS
    assert {request.token for request in hub.seen()} == {None}


def test_a_gated_repository_opens_to_a_reader(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens = hub.repos[NAME].readers = {"hf_reader"}
    hub.repos[NAME].gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert list(open_checkpoint(TARGET).shards) == SHARDS
    assert hub.seen(SHARDS[0], "cdn")[0].sent == 1


def test_huggingface_hub_is_imported_late(hub: HubServer) -> None:
    script = (
        "import sys; from ckptcheck.checkpoint import hub, open; assert 'huggingface_hub' not in sys.modules;"
        f"print(len(open.open_checkpoint({TARGET!r}).shards))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")


class Case:
    """What goes wrong, and what is said of it: {hub} and {cdn} stand for the hosts."""

    def __init__(
        self, kind: type[Exception], said: str, hint: str | None, prepare: Callable[[HubServer], object], **how: str
    ) -> None:
        self.kind, self.said, self.hint, self.prepare = kind, said, hint, prepare
        self.target, self.token, self.endpoint = (how.get(key, "") for key in ("target", "token", "endpoint"))


def _repo(**settings: bool) -> Callable[[HubServer], object]:
    return lambda hub: vars(hub.repos[NAME]).update(settings)


def _fail(where: str, status: int = 0, way: Way | None = None, **headers: str) -> Callable[[HubServer], object]:
    return lambda hub: hub.fail(where, status, way, **headers)


def _nothing(hub: HubServer) -> bool:
    hub.tokens = {"hf_good"}
    return True


LATER = "check the network, or try again later"
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
WRONG = {
    "no such repository": Case(
        CkptcheckError, "{hub} has no repository acme/typo that is public",
        f"check its name; if it is private, {LOG_IN}", _nothing, target="hf://acme/typo",
    ),
    "no such repository, logged in": Case(
        CkptcheckError, "{hub} has no repository acme/typo that your token may read",
        "check its name", _nothing, target="hf://acme/typo", token="hf_good",
    ),
    "no such path": Case(
        CkptcheckError,
        "out/step_100 is no file or folder here, and {hub} has no repository out/step_100 that is public",
        f"check its name; if it is private, {LOG_IN}", _nothing, target="out/step_100",
    ),
    "no such path, no Hub": Case(
        EvidenceError,
        "out/step_100 is no file or folder here, and {closed} cannot be reached: "
        f"[Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}",
        LATER, _nothing, target="out/step_100", endpoint="http://{closed}",
    ),
    "no such revision": Case(
        CkptcheckError, "acme/tiny has no revision 'v9'", "name a branch, a tag or a commit of it",
        _nothing, target=f"{TARGET}@v9",
    ),
    "a revision that leads elsewhere": Case(
        CkptcheckError, "acme/tiny has no revision '..'", "name a branch, a tag or a commit of it",
        _nothing, target=f"{TARGET}@..",
    ),
    "private": Case(
        CkptcheckError, "{hub} has no repository acme/tiny that is public",
        f"check its name; if it is private, {LOG_IN}", _repo(private=True),
    ),
    "gated": Case(
        CkptcheckError, "acme/tiny is gated and can be read only after logging in",
        LOG_IN + ", and ask for access at http://{hub}/acme/tiny", _repo(gated=True),
    ),
    "gated, logged in": Case(
        CkptcheckError, "acme/tiny is gated and your token does not open it",
        "let the token read gated repositories, and ask for access at http://{hub}/acme/tiny",
        lambda hub: (_nothing(hub), _repo(gated=True)(hub)), token="hf_good",
    ),
    "a token that does not count": Case(
        CkptcheckError, "{hub} does not accept your token", f"{LOG_IN} to one that is valid", _nothing, token="hf_old",
    ),
    "a token that is none": Case(
        CkptcheckError, "your token has characters that no token has", LOG_IN, _nothing, token="hf_\N{BULLET}",
    ),
    "forbidden": Case(
        CkptcheckError, "{hub} does not let you read acme/tiny (403 Forbidden)", LOG_IN, _fail("/api/", 403),
    ),
    "a bad name": Case(
        CkptcheckError, "'acme/tiny/nested' names no repository", "write it as org/name", _nothing,
        target=f"{TARGET}/nested",
    ),
    "a bad name that may be a path": Case(
        CkptcheckError, "acme/ti--ny is no file or folder here, and 'acme/ti--ny' names no repository",
        "write it as org/name", _nothing, target="acme/ti--ny",
    ),
    "a path above this folder": Case(
        CkptcheckError, "../tiny does not exist",
        "name a folder, a .safetensors file, its index, or hf://org/name for the Hub", _nothing, target="../tiny",
    ),
    "an endpoint that is none": Case(
        CkptcheckError, "HF_ENDPOINT is no address of a Hub", "write it as https://…", _nothing,
        endpoint="user:secret@hf-mirror.com",
    ),
    "rate limit": Case(
        EvidenceError, "{hub} accepts no more requests for now (429 Too Many Requests)",
        f"wait 120 seconds, or {LOG_IN}", _fail("/tree/", 429, Retry_After="120"),
    ),
    "rate limit in the Hub's form": Case(
        EvidenceError, "{hub} accepts no more requests for now (429 Too Many Requests)",
        f"wait 55 seconds, or {LOG_IN}", _fail("/api/", 429, RateLimit='"api";r=0;t=55'),
    ),
    "rate limit without a time": Case(
        EvidenceError, "{hub} accepts no more requests for now (429 Too Many Requests)",
        "wait some minutes", lambda hub: (_nothing(hub), hub.fail("/api/", 429)), token="hf_good",
    ),
    "outage": Case(
        EvidenceError, "{hub} has an internal error (503 Service Unavailable)", "try again later", _fail("/api/", 503),
    ),
    "an outage of its own": Case(EvidenceError, "{hub} has an internal error (520)", "try again later", _fail("/tree/", 520)),
    "bad request": Case(EvidenceError, "{hub} refuses the request (400 Bad Request)", None, _fail("/api/", 400)),
    "unreachable": Case(
        EvidenceError,
        f"{{closed}} cannot be reached: [Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}",
        LATER, _nothing, endpoint="http://{closed}",
    ),
    "a password in the address": Case(
        EvidenceError,
        f"{{closed}} cannot be reached: [Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}",
        LATER, _nothing, endpoint="http://me:secret@{closed}",
    ),
    "silence": Case(EvidenceError, "{hub} did not answer within 0.2 seconds", LATER, _fail("/api/", way="hang")),
    "dropped": Case(EvidenceError, "{hub} broke off its answer", LATER, _fail("/api/", way="drop")),
    "a login page": Case(
        EvidenceError, "{hub} answers, but not as a Hub does", "look for a login page", _fail("/api/", way="html"),
    ),
}  # fmt: skip


@pytest.fixture
def closed() -> Iterator[str]:
    """An address at which nothing listens: bound, so that nobody else can, but not open."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in WRONG.items()])
def test_what_keeps_a_repository_from_opening(
    hub: HubServer, closed: str, monkeypatch: pytest.MonkeyPatch, waits: list[float], case: Case
) -> None:
    hosts = {"hub": hub.host, "closed": closed}
    monkeypatch.setattr(requests, "READ_TIMEOUT", 0.2 if "0.2" in case.said else 30)
    if case.endpoint:
        monkeypatch.setenv("HF_ENDPOINT", case.endpoint.format(**hosts))
    if case.token:
        monkeypatch.setenv("HF_TOKEN", case.token)
    case.prepare(hub)
    with pytest.raises(CkptcheckError) as caught:
        open_checkpoint(case.target or TARGET)
    assert caught.type is case.kind
    assert caught.value.message == case.said.format(**hosts)
    assert caught.value.hint == (case.hint and case.hint.format(**hosts))
    again = case.kind is EvidenceError and (case.hint in (LATER, "try again later") or case.hint == "wait some minutes")
    assert waits == ([1.0, 2.0] if again else [])


UNREAD = {
    "rate limit": (_fail("cdn", 429), "{cdn} accepts no more requests for now (429 Too Many Requests)"),
    "outage": (_fail("cdn", 500), "{cdn} has an internal error (500 Internal Server Error)"),
    "outage of the Hub": (_fail("/resolve/", 502), "{hub} has an internal error (502 Bad Gateway)"),
    "refused by the CDN": (
        _fail("cdn", 403), "{cdn}, where the Hub keeps its files, refuses to serve it (403 Forbidden)",
    ),
    "lost by the CDN": (
        _fail("cdn", 404), "{cdn}, where the Hub keeps its files, refuses to serve it (404 Not Found)",
    ),
    "broken off": (_fail("cdn", way="half"), "{cdn} broke off its answer"),
    "a shorter part": (_fail("cdn", way="short"), "{cdn} broke off its answer"),
    "dropped": (_fail("/resolve/", way="drop"), "{hub} broke off its answer"),
    "silence": (_fail("cdn", way="hang"), "{cdn} did not answer within 0.2 seconds"),
    "silence half way": (_fail("cdn", way="hang-half"), "{cdn} did not answer within 0.2 seconds"),
    "another part": (_fail("cdn", way="other-part"), "{cdn} sent another part of the file than the one asked for"),
    "a login page": (_fail("cdn", way="html"), "{cdn} has 36 bytes of it, but {size} are listed"),
    "endless redirects": (
        _fail("/resolve/", 302, Location="/acme/tiny/resolve/again"),
        "the request to {hub} failed: Exceeded maximum allowed redirects.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("prepare", "said"), [pytest.param(*case, id=name) for name, case in UNREAD.items()])
def test_what_keeps_a_file_from_being_read(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[HubServer], object], said: str
) -> None:
    repository = Repository(NAME, None, TARGET)
    prepare(hub)
    monkeypatch.setattr(requests, "READ_TIMEOUT", 0.2 if "0.2" in said else 30)
    name, size = SHARDS[0], (folder / SHARDS[0]).stat().st_size
    with pytest.raises(OSError, match=r"127\.0\.0\.1") as caught:
        repository.read(name, 0, 4096)
    assert caught.value.strerror == said.format(hub=hub.host, cdn=hub.cdn_host, size=f"{size:,}")
    assert caught.type is OSError


def test_an_unread_shard_is_told(hub: HubServer) -> None:
    checkpoint = open_checkpoint(TARGET)
    hub.fail(f"cdn .*{SHARDS[1]}", 503)
    assert checkpoint.unread == {SHARDS[1]: f"{hub.cdn_host} has an internal error (503 Service Unavailable)"}
    assert list(checkpoint.shards) == [SHARDS[0], SHARDS[2]]


def test_a_file_that_is_gone(hub: HubServer, folder: Path) -> None:
    repository = Repository(NAME, None, TARGET)
    (folder / SHARDS[0]).unlink()
    with pytest.raises(FileNotFoundError, match="it is no longer in the repository"):
        repository.read(SHARDS[0], 0, 8)


def test_access_that_is_taken_away(hub: HubServer) -> None:
    checkpoint = open_checkpoint(TARGET)
    hub.repos[NAME].gated = True
    assert checkpoint.unread["config.json"] == "acme/tiny is gated and can be read only after logging in"
    with pytest.raises(PermissionError):
        checkpoint.source.read("config.json", 0, 8)


@pytest.mark.parametrize(
    ("fault", "asked"),
    [
        ({"status": 429, "Retry_After": "5"}, [5.0]),
        ({"status": 429, "RateLimit": '"resolvers";r=0;t=7'}, [7.0]),
        ({"status": 429, "Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, [1.0]),
        ({"status": 503}, [1.0]),
        ({"way": "half"}, [1.0]),
        ({"way": "short"}, [1.0]),
        ({"way": "drop", "times": 2}, [1.0, 2.0]),
    ],
)
def test_tries_again(
    hub: HubServer, folder: Path, waits: list[float], fault: dict[str, Any], asked: list[float]
) -> None:
    repository = Repository(NAME, None, TARGET)
    hub.fail("cdn", **{"times": 1, **fault})
    assert repository.read(SHARDS[0], 5, 1000) == (folder / SHARDS[0]).read_bytes()[5:1005]
    assert waits == asked
    assert len(hub.seen(server="cdn")) == len(asked) + 1


@pytest.mark.parametrize(("status", "wait", "requests"), [(429, "0", 3), (429, "11", 1), (503, "11", 1), (404, "0", 1)])
def test_gives_up(hub: HubServer, status: int, wait: str, requests: int) -> None:
    repository = Repository(NAME, None, TARGET)
    hub.fail("cdn", status, Retry_After=wait)
    with pytest.raises(OSError, match=str(status)):
        repository.read(SHARDS[0], 0, 8)
    assert len(hub.seen(server="cdn")) == requests


def test_a_server_that_ignores_ranges_is_cut_short(hub: HubServer, folder: Path) -> None:
    header = json.dumps({"huge": {"dtype": "U8", "shape": [1 << 30], "data_offsets": [0, 1 << 30]}}).encode()
    with (folder / "huge.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 30))
    repository = Repository(NAME, None, TARGET)
    hub.fail("cdn", way="whole")
    beginning = len(header).to_bytes(8, "little") + header
    assert repository.read("huge.safetensors", 0, FIRST_READ) == beginning.ljust(FIRST_READ, b"\0")
    [request] = hub.seen(server="cdn")
    assert request.done.wait(60)
    assert request.status == 200
    assert request.sent < 1 << 28
    with pytest.raises(OSError, match="serves only whole files") as caught:
        repository.read("huge.safetensors", 8, 8)
    assert caught.value.strerror == f"{hub.cdn_host} serves only whole files, not ranges of bytes"
    assert len(hub.seen(server="cdn")) == 2


def test_an_index_of_zeros_is_not_fetched_whole(hub: HubServer, folder: Path) -> None:
    """Half a gigabyte was fetched, and one of forty too."""
    name = "pytorch_model.bin.index.json"
    (folder / name).touch()
    os.truncate(folder / name, 500 << 20)
    ckptcheck.scan(TARGET, select=["SET006"])
    assert 0 < sum(request.sent for request in hub.seen(name)) < 100 << 20


def test_a_whole_small_file_for_a_part_of_it(hub: HubServer, folder: Path) -> None:
    hub.fail("/resolve/", way="whole")
    checkpoint = open_checkpoint(TARGET)
    assert checkpoint.config == open_checkpoint(str(folder)).config
    assert checkpoint.source.read("config.json", 0, 4) == b'{"ar'
    assert checkpoint.source.read("merges.txt", 0, 4) == b""


def test_past_the_end(hub: HubServer, folder: Path) -> None:
    (folder / "empty.safetensors").write_bytes(b"")
    repository = Repository(NAME, None, TARGET)
    size = repository.files[SHARDS[1]].size
    assert repository.read("empty.safetensors", 0, FIRST_READ) == b""
    assert repository.read(SHARDS[1], size, 8) == b""
    assert len(repository.read(SHARDS[1], size - 3, 8)) == 3
    assert [request.status for request in hub.seen(server="cdn")] == [416, 416, 206]


def test_contents_of_another_size_than_listed(hub: HubServer, folder: Path) -> None:
    size = (folder / SHARDS[0]).stat().st_size
    hub.listed_sizes[SHARDS[0]] = size + 1000
    said = f"{hub.cdn_host} has {size:,} bytes of it, but {size + 1000:,} are listed"
    assert open_checkpoint(TARGET).unread == {SHARDS[0]: said}


@pytest.mark.parametrize(
    ("rates", "lasts"),
    [([1], 31), ([9_000], 31), ([10_000_000] * 10 + [1], 41), ([20_000] * 1000, 1000)],
    ids=["byte by byte", "too slow", "fast at first", "slow enough"],
)
def test_an_answer_is_given_up_by_what_comes_in_a_window(
    monkeypatch: pytest.MonkeyPatch, rates: list[int], lasts: int
) -> None:
    """Only the mean since the beginning was looked at: behind 100 MB, a server could trickle for three hours."""
    clock = itertools.count()
    monkeypatch.setattr(requests, "monotonic", lambda: now)
    now = next(clock)
    progress = requests.Progress(math.inf)
    progress.begin_body()
    for rate in itertools.chain(rates, itertools.repeat(rates[-1], lasts - len(rates))):
        assert now < lasts
        now = next(clock)
        is_in_time = progress.receive(rate)
    assert is_in_time == (rates[-1] >= 10_000)


def test_an_answer_that_trickles(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(NAME, None, TARGET)
    monkeypatch.setattr(requests, "WINDOW_SECONDS", -1)
    with pytest.raises(OSError, match="answers too slowly"):
        repository.read(SHARDS[0], 0, FIRST_READ)


def test_a_head_that_trickles(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(NAME, None, TARGET)
    monkeypatch.setattr(requests, "HEAD_SECONDS", 0.5)
    hub.fail("cdn", way="slow-head")
    with pytest.raises(OSError, match="too slowly") as caught:
        repository.read(SHARDS[0], 0, 1)
    assert caught.value.strerror == f"{hub.host} answers too slowly"
    assert len(hub.seen(server="cdn")) == 1


def test_a_server_that_trickles_is_asked_no_more(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(NAME, None, TARGET)
    monkeypatch.setattr(requests, "HEAD_SECONDS", 0.2)
    hub.fail("/resolve/", way="slow-head")
    reasons = []
    for name in SHARDS:
        with pytest.raises(OSError, match="too slowly") as caught:
            repository.read(name, 0, 1)
        reasons.append(caught.value.strerror)
    slow = f"{hub.host} answers too slowly"
    assert reasons == [slow, *2 * [f"{hub.host} answered too slowly, and is not asked again"]]


@pytest.mark.parametrize("limit", ["pages", "files", "seconds"])
def test_a_listing_without_end(hub: HubServer, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    hub.endless = True
    said = "answers too slowly"
    if limit == "pages":
        monkeypatch.setattr(module, "MAX_PAGES", 5)
        said = "lists the files of acme/tiny on more than 5 pages"
    elif limit == "files":
        monkeypatch.setattr(module, "MAX_FILES", 3)
        said = "lists more than 3 files of acme/tiny"
    else:
        clock = itertools.count(step=2)
        for part in (module, requests):
            monkeypatch.setattr(part, "monotonic", lambda: next(clock))
    with pytest.raises(EvidenceError) as caught:
        open_checkpoint(TARGET)
    assert caught.value.message == f"{hub.host} {said}"
    assert len(hub.seen("/tree/")) <= 200


def test_an_answer_that_is_packed_twice(hub: HubServer) -> None:
    hub.fail("/api/", way="packed")

    def say() -> str:
        with pytest.raises(EvidenceError) as caught:
            open_checkpoint(TARGET)
        return caught.value.message

    outcome = run_limited(say)
    assert (outcome.fault, outcome.answer) == (
        "",
        f"{hub.host} sends its answer compressed, although it was asked not to",
    )


def test_offline_mode(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CkptcheckError) as caught:
        open_checkpoint(TARGET)
    assert (caught.type, caught.value.message) == (CkptcheckError, "HF_HUB_OFFLINE is set, so the Hub is not asked")
    assert caught.value.hint == "unset it, or name a local folder"
    assert hub.requests == []


@pytest.mark.parametrize(
    "proxy", ["gopher://secret@127.0.0.1:70", "http://user:secret", "http://user:secret@host:secret"]
)
def test_a_proxy_that_is_none(proxy: str, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(CkptcheckError) as caught:
        open_checkpoint(TARGET)
    assert caught.type is CkptcheckError
    assert caught.value.message == "the proxy or certificate settings of the environment cannot be used"
    assert caught.value.hint == "see HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"


def test_a_snapshot_in_the_cache(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--acme--tiny"
    snapshot = cache / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(path for path in sorted(folder.iterdir()) if path.is_file()):
        path.rename(cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    (snapshot / "out.safetensors").symlink_to("../../../secret.safetensors")
    checkpoint = open_checkpoint(str(snapshot))
    assert list(checkpoint.shards) == SHARDS
    assert checkpoint.unread == {}
    assert checkpoint.config is not None
    left = {name: file.outside_link for name, file in checkpoint.files.items() if file.outside_link is not None}
    assert left == {"out.safetensors": "../../../secret.safetensors"}
    with pytest.raises(PermissionError):
        checkpoint.source.read("out.safetensors", 0, 8)


def test_what_is_not_looked_for_on_the_hub_is_skipped_and_not_passed(hub: HubServer) -> None:
    """Rules that read many small parts of a file would ask for each of them."""
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules
    from ckptcheck.values.value_pass import ValuePass
    from tests.factories.checkpoint_cases import CHECKPOINTS

    rules = [rule for rule in rule_loader.load_rules() if rule.code.startswith("VAL")]
    hub.push("acme/moe", CHECKPOINTS / "tiny-qwen3-moe")
    report = run_rules(open_checkpoint("hf://acme/moe", value_reader=ValuePass()), rules)
    assert not report.crashed
    assert {code for code, why in report.skipped if "only on disk" in why} == {
        "VAL005",
        "VAL006",
        "VAL009",
        "VAL010",
        "VAL012",
        "VAL013",
        "VAL014",
        "VAL015",
        "VAL017",
        "VAL019",
        "VAL021",
        "VAL024",
        "VAL025",
        "VAL029",
        "VAL030",
        "VAL031",
        "VAL033",
        "VAL036",
    }


def test_experts_in_one_tensor_are_skipped_on_the_hub_and_not_passed(hub: HubServer, tmp_path: Path) -> None:
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules
    from ckptcheck.values.value_pass import ValuePass

    (tmp_path / "moe").mkdir()
    values = np.random.default_rng(0).standard_normal((2, 4, 16, 8), dtype=np.float32)
    values[0, 1] = values[0, 2]  # on disk this is found
    tensors = {f"model.layers.{layer}.mlp.experts.gate_up_proj": values[layer] for layer in range(2)}
    save_file(tensors, tmp_path / "moe/model.safetensors", metadata={"format": "pt"})
    hub.push("acme/moe", tmp_path / "moe")
    rules = [rule for rule in rule_loader.load_rules() if rule.code == "VAL009"]
    found = run_rules(open_checkpoint(str(tmp_path / "moe"), value_reader=ValuePass()), rules)
    assert [finding.code for finding in found.findings] == ["VAL009"]
    report = run_rules(open_checkpoint("hf://acme/moe", value_reader=ValuePass()), rules)
    assert report.skipped == (
        (
            "VAL009",
            "most experts are compared only on disk, and in an object store with --values",
        ),
    )
    assert not report.passed
    assert not report.findings


@pytest.mark.parametrize("link", ['<http://[>; rel="next"', "<http://[::1; rel=next>"])
def test_a_next_page_at_an_address_that_is_none(hub: HubServer, link: str) -> None:
    hub.fail("tree", 200, Link=link)
    with pytest.raises(CkptcheckError):
        open_checkpoint(TARGET)


@pytest.mark.parametrize(
    "name",
    ["..", "../../../../api/whoami.safetensors", "/etc/passwd", "a/../../../../../b.safetensors", ".", "", "a\nb.safetensors",
     "a\0.safetensors", "\x1b[2J.safetensors", "::error::x.safetensors", "x" * 5000 + ".safetensors", "%2e%2e%2f.safetensors",
     "a?b#c.safetensors", "\\\\host\\x.safetensors", "http://elsewhere/x.safetensors", "additional_chat_templates/../x.jinja"],
)  # fmt: skip
def test_a_name_of_a_listing_leads_nowhere_else(name: str, hub: HubServer) -> None:
    """Whatever a Hub lists, each request goes to the files of the repository, and no name is a command of a CI."""
    hub.also_listed = [{"type": "file", "path": name, "size": 1000}]
    with suppress(CkptcheckError):
        report = ckptcheck.scan(TARGET)[0]
        for form in FORMATS:
            if form != "text":
                assert not any(line.startswith("::error::x") for line in render(form, [report], ()).splitlines())
    allowed = (f"/api/models/{NAME}/", f"/{NAME}/resolve/")
    assert [one.path for one in hub.seen(server="hub") if not one.path.startswith(allowed)] == []
    assert not [one for one in hub.seen(server="hub") if "/../" in one.path]
