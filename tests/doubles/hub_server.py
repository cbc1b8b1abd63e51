"""A Hugging Face Hub on the loopback interface: the endpoints that a scan needs, a CDN beside it, and faults to inject.

It follows the Hub in what clients see: an unknown repository is a 401 without a token and a 404 with one, a gated one
is listed to everybody but not handed out, LFS files are redirected to another host with a signed address, and that host
refuses a request which brings a second kind of authorization along.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK = 1 << 16
LFS = (".safetensors", ".bin")
NONE: Mapping[str, str] = {}
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
Way = Literal["whole", "half", "short", "drop", "hang", "hang-half", "other-part", "html", "slow-head", "packed"]


@dataclass
class Request:
    """What arrived, and how many bytes of body were sent for it so far; `done` is set when the answer has ended."""

    server: str
    method: str
    path: str
    query: str
    range: str | None
    token: str | None
    sent: int = 0
    status: int = 0
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class Fault:
    """Spoils the answers to requests whose ``server path`` matches the pattern `where`, `times` times (None: always).

    With a status it answers that; otherwise `way`: whole (ignores the range), half (promises all, sends half), short
    (promises and sends half), other-part (a range that was not asked for), drop (closes without an answer), hang (never
    answers), hang-half, html (a web page), slow-head (a letter of the head at a time, without end), packed (gigabytes of
    zeros, packed twice).
    """

    where: str
    status: int = 0
    way: Way | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int | None = None


@dataclass
class Repo:
    """folders: by commit. commits: by branch, tag or commit. private and gated: to all but the tokens in `readers`."""

    folders: dict[str, Path] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)


class HubServer:
    """A Hub with a CDN, both served until the end of the ``with`` block.

    page: files on one page of a listing. deep: it lists what is in folders too, though not asked to. endless: every page of a
    listing names a next one.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.renamed: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.page = 1000
        self.deep = False
        self.endless = False
        self.listed_sizes: dict[str, int] = {}
        self.also_listed: list[dict[str, object]] = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.bugs: list[BaseException] = []
        self.connections = {"hub": 0, "cdn": 0}
        self._servers = {name: _Server(self, name) for name in ("hub", "cdn")}
        self.host, self.cdn_host = (f"127.0.0.1:{server.server_port}" for server in self._servers.values())
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        if self.bugs:
            raise self.bugs[0]

    def push(self, name: str, folder: Path, branch: str = "main") -> str:
        """Make a new commit with the files of the folder, which the branch then names."""
        repo = self.repos.setdefault(name, Repo())
        commit = hashlib.sha1(f"{name} {folder} {len(repo.folders)}".encode()).hexdigest()
        repo.folders[commit] = folder
        repo.commits[branch] = repo.commits[commit] = commit
        return commit

    def fail(
        self, where: str, status: int = 0, way: Way | None = None, times: int | None = None, **headers: str
    ) -> None:
        """Inject a fault (the first one that matches counts); `headers` with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(where, status, way, named, times))

    def seen(self, part: str = "", server: str | None = None) -> list[Request]:
        """The requests so far whose path contains `part`."""
        with self.lock:
            return [each for each in self.requests if part in each.path and server in (None, each.server)]

    def fault(self, request: Request) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times != 0 and re.search(fault.where, f"{request.server} {request.path}"):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: HubServer, name: str) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), partial(_Handler, hub, name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a bug of this server for the end of the test; a client that leaves early is none."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.hub.bugs.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: HubServer, server_name: str, *args: Any) -> None:
        self.hub = hub
        self.server_name = server_name
        with hub.lock:
            hub.connections[server_name] += 1
        super().__init__(*args)

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `HubServer.requests` instead."""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked, token = self.headers.get("Range"), self.headers.get("Authorization")
        self.request_ = Request(self.server_name, self.command, address.path, address.query, asked, token)
        with self.hub.lock:
            self.hub.requests.append(self.request_)
        try:
            self._answer(address.path, {key: values[0] for key, values in parse_qs(address.query).items()})
        except OSError:
            self.close_connection = True
        finally:
            self.request_.done.set()

    def _answer(self, path: str, query: dict[str, str]) -> None:
        self.fault = self.hub.fault(self.request_)
        token = (self.request_.token or "").removeprefix("Bearer ")
        if self.fault and self.fault.status:
            return self._send(self.fault.status, {"Content-Length": "0", **self.fault.headers})
        if self.fault and self.fault.way == "drop":
            self.close_connection = True
            return None
        if self.fault and self.fault.way == "hang":
            return self._hang()
        if self.fault and self.fault.way == "slow-head":
            return self._dribble()
        if self.fault and self.fault.way == "packed":
            packed = gzip.compress(gzip.compress(bytes(1 << 20)) * 3000)
            return self._send(200, {"Content-Encoding": "gzip, gzip", "Content-Length": str(len(packed))}, packed)
        if self.fault and self.fault.way == "html":
            return self._send(200, {"Content-Type": "text/html"}, b"<!doctype html><title>Log in</title>")
        if self.server_name == "cdn":
            if token or "Signature=" not in self.request_.query:
                return self._send(400, {"Content-Length": "0"})
            return self._file(Path(unquote(path).removeprefix("/blobs")))
        if token and token not in self.hub.tokens:
            return self._refuse(401, message="Invalid credentials in Authorization header")
        return self._hub([unquote(part) for part in path.strip("/").split("/")], query, token)

    def _hub(self, parts: list[str], query: dict[str, str], token: str) -> None:
        api = parts[:2] == ["api", "models"]
        if api:
            parts = parts[2:]
        name, (verb, revision, *rest) = "/".join(parts[:2]), [*parts[2:], "", ""]
        if name in self.hub.renamed:
            old, new = (f"/{part}/" for part in (name, self.hub.renamed[name]))
            return self._send(307, {"Location": self.path.replace(old, new, 1), "Content-Length": "0"})
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and token not in repo.readers):
            return self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        commit = repo.commits.get(revision or "main")
        if commit is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api and verb in ("", "revision"):
            return self._json({"id": name, "sha": commit, "gated": "auto" if repo.gated else False})
        if api and verb == "tree":
            return self._tree(repo.folders[commit], "/".join(rest[:-2]), query)
        if verb == "resolve":
            return self._resolve(repo, commit, "/".join(rest[:-2]), token)
        return self._refuse(404)

    def _tree(self, folder: Path, inner: str, query: dict[str, str]) -> None:
        entries: list[dict[str, object]] = []
        recursive = self.hub.deep or query.get("recursive") in ("true", "True")
        listed = folder / inner
        for path in sorted(listed.rglob("*") if recursive else listed.iterdir()):
            name = path.relative_to(folder).as_posix()
            if path.is_dir():
                entries.append({"type": "directory", "path": name, "oid": "0" * 40, "size": 0})
                continue
            size = self.hub.listed_sizes.get(name, path.stat().st_size)
            lfs = {"lfs": {"oid": "0" * 64, "size": size, "pointerSize": 134}} if name.endswith(LFS) else {}
            entries.append({"type": "file", "path": name, "oid": "0" * 40, "size": size, **lfs})
        entries += self.hub.also_listed
        begin = int(query.get("cursor", 0))
        end = begin + self.hub.page
        link = f'<{self.hub.url}{self.request_.path}?recursive=false&expand=false&cursor={end}>; rel="next"'
        self._json(entries[begin:end], {"Link": link} if end < len(entries) or self.hub.endless else {})

    def _resolve(self, repo: Repo, commit: str, name: str, token: str) -> None:
        if repo.gated and token not in repo.readers:
            return self._refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted.")
        path = repo.folders[commit] / name
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(bytes(path)).hexdigest()}"'}
        if not name.endswith(LFS):
            return self._file(path, headers)
        location = f"http://{self.hub.cdn_host}/blobs{quote(str(path))}?X-Amz-Signature=secret"
        linked = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-ETag": headers["ETag"]}
        return self._send(302, {**headers, **linked, "Location": location, "Content-Length": "0"})

    def _file(self, path: Path, headers: Mapping[str, str] = NONE) -> None:
        """Send a file, or the range of it that was asked for, in pieces, so that a client can stop it."""
        way = self.fault.way if self.fault else None
        size = path.stat().st_size
        asked = RANGE.fullmatch(self.request_.range or "")
        begin, end, status = 0, size, 200
        if asked and way != "whole" and "gzip" not in self.headers.get("Accept-Encoding", ""):  # as the Hub does
            begin, end, status = int(asked[1]), min(int(asked[2]) + 1, size), 206
            if way == "short":
                end = (begin + end) // 2
            if way == "other-part":
                begin += 1
            if begin >= size:
                return self._send(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        self._send(status, {**headers, "Content-Length": str(end - begin), "Accept-Ranges": "bytes"})
        if self.command == "HEAD":
            return None
        stop = begin + (end - begin) // 2 if way in ("half", "hang-half") else end
        with path.open("rb") as file:
            file.seek(begin)
            while begin < stop and (part := file.read(min(CHUNK, stop - begin))):
                self.wfile.write(part)
                self.request_.sent += len(part)
                begin += len(part)
        if way == "hang-half":
            self._hang()
        self.close_connection |= stop < end
        return None

    do_HEAD = do_GET

    def _dribble(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Letters: ")
        while not self.hub.stopping.wait(0.02):
            self.wfile.write(b"a")
        self.close_connection = True

    def _hang(self) -> None:
        self.hub.stopping.wait()
        self.close_connection = True

    def _refuse(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, {**{key: value for key, value in headers.items() if value}, "Content-Length": "0"})

    def _json(self, value: object, headers: Mapping[str, str] = NONE) -> None:
        self._send(200, {"Content-Type": "application/json", **headers}, json.dumps(value).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.request_.status = status
        self.send_response(status, HTTPStatus(status).phrase if status in list(HTTPStatus) else "")
        for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.request_.sent += len(body)
