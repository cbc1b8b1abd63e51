"""An object store on the loopback interface: S3, Google Cloud Storage and Azure as obstore reads them, and faults to inject."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Kind = Literal["s3", "gs", "az"]
Way = Literal["cut", "drop", "slow", "other-etag", "replace"]
TIME = "Mon, 23 Nov 2026 03:00:00 GMT"


@dataclass(frozen=True)
class StoredFile:
    """An object whose content stays in a file, so that it may be larger than memory."""

    path: Path

    def __len__(self) -> int:
        return self.path.stat().st_size

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        with self.path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), end - begin, begin)


Content = bytes | StoredFile


@dataclass
class Fault:
    """Spoils the answers to reads of objects that match `where`, `times` times (None: always).

    With a status it answers that; otherwise `way`: cut (promises all, sends half), drop (closes without an answer), slow (sends
    a byte a second), other-etag (does as if there were no condition, and names another ETag), replace (the object gets another
    content before it is read, so that If-Match fails).
    """

    where: str
    status: int = 0
    way: Way | None = None
    times: int | None = None


@dataclass
class ObjectServer:
    """Buckets of objects, served until the end of the ``with`` block. bucket → key → content."""

    kind: Kind = "s3"
    page: int = 1000
    is_endless: bool = False
    """Whether each page of a list says that there is one more."""
    answer_list: Callable[[str], str] | None = None
    """What it answers to every request for a list, by its prefix; None: what the list is."""
    buckets: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    reads: list[tuple[str, str, str]] = field(default_factory=list)
    """Key, Range and If-Match of every read."""
    requests: int = 0
    """How many it answered that write nothing: of lists, objects and their heads."""

    def __enter__(self) -> Self:
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def push(self, bucket: str, folder: Path, prefix: str = "", *, in_memory: bool = True) -> None:
        """Put all files of a folder and below it into a bucket. in_memory: as they are now; else they are read when asked for."""
        inside = f"{prefix}/" if prefix else ""
        objects = self.buckets.setdefault(bucket, {})
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = inside + path.relative_to(folder).as_posix()
                objects[key] = path.read_bytes() if in_memory else StoredFile(path)

    def set_environment(self, setenv: Callable[[str, str], None], folder: Path) -> None:
        """Point obstore to this server. folder: for a file of credentials."""
        if self.kind == "s3":
            setenv("AWS_ENDPOINT_URL", self.url)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                setenv(name, "key")
            setenv("AWS_REGION", "us-east-1")
        elif self.kind == "gs":
            account = folder / "account.json"
            keys = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            account.write_text(json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **keys}))
            setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
            setenv("ALLOW_HTTP", "true")
        else:
            setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
            setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
            setenv("AZURE_STORAGE_ENDPOINT", self.url)

    def fail(self, where: str, status: int = 0, way: Way | None = None, times: int | None = None) -> None:
        """Inject a fault; the first one that matches counts."""
        self.faults.append(Fault(where, status, way, times))

    def take_fault(self, key: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times != 0 and re.search(fault.where, key):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def count_reads(self) -> Counter[str]:
        """How often each object was read."""
        with self.lock:
            return Counter(key for key, _, _ in self.reads)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client to acknowledge its head

    def __init__(self, server: ObjectServer, *args: Any) -> None:
        self.store = server
        super().__init__(*args)

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `ObjectServer.reads` instead."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        """Write an object, on the conditions of the request; a fault of ``put KEY`` refuses it."""
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.store.take_fault(f"put {key}")
        if fault is not None or bucket not in self.store.buckets:
            return self._send(fault.status if fault is not None else 404, b"<Error><Code>NoSuchBucket</Code></Error>")
        with self.store.lock:
            objects = self.store.buckets[bucket]
            must_be = self.headers["If-Match"]
            is_new = "*" in (
                self.headers["If-None-Match"],
                "*" if self.headers["x-goog-if-generation-match"] == "0" else "",
            )
            if (is_new and key in objects) or (must_be and make_etag(objects.get(key, b"")) != must_be):
                return self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            objects[key] = content
        return self._send(
            201 if self.store.kind == "az" else 200, b"{}", {"ETag": make_etag(content), "Last-Modified": TIME}
        )

    def _answer(self) -> None:
        with self.store.lock:
            self.store.requests += 1
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        try:
            if bucket not in self.store.buckets:
                self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif "list-type" in query or query.get("comp") == "list":
                self._list(bucket, query)
            else:
                self._read(bucket, key)
        except OSError:
            self.close_connection = True

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        fault = self.store.take_fault(f"list {query.get('prefix', '')}")
        if fault is not None:
            return self._send(fault.status, b"")
        if self.store.answer_list is not None:
            return self._send(200, self.store.answer_list(query.get("prefix", "")).encode())
        prefix, objects = query.get("prefix", ""), self.store.buckets[bucket]
        inner = sorted(key for key in objects if key.startswith(prefix))
        folders = sorted({key[: key.index("/", len(prefix)) + 1] for key in inner if "/" in key[len(prefix) :]})
        entries = [(key, False) for key in inner if "/" not in key[len(prefix) :]] + [(name, True) for name in folders]
        begin = int(query.get("continuation-token") or query.get("marker") or 0)
        page = entries[begin : begin + self.store.page]
        following = str(begin + self.store.page) if begin + self.store.page < len(entries) else ""
        if self.store.is_endless:
            following = str(begin + 1)
            page = page or entries[:1]
        write = _azure_list if self.store.kind == "az" else _s3_list
        return self._send(200, write(page, objects, following).encode())

    def _read(self, bucket: str, key: str) -> None:
        store, objects = self.store, self.store.buckets[bucket]
        asked, condition = self.headers.get("Range", ""), self.headers.get("If-Match", "")
        if self.command == "GET":
            with store.lock:
                store.reads.append((key, asked, condition))
        fault = store.take_fault(key)
        if fault is not None and fault.status:
            return self._send(fault.status, b"")
        if fault is not None and fault.way == "drop":
            self.close_connection = True
            return None
        if fault is not None and fault.way == "replace":
            objects[key] = bytes(len(objects[key]))
        if key not in objects:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content = objects[key]
        etag = make_etag(content)
        if fault is not None and fault.way == "other-etag":
            etag = '"another"'
        elif condition and condition != etag:
            return self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        headers = {"ETag": etag, "Last-Modified": TIME}
        if not (found := re.fullmatch(r"bytes=(\d+)-(\d+)", asked)):
            return self._send(200, content[:], headers)
        begin, end = int(found[1]), min(int(found[2]) + 1, len(content))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return self._send(206, content[begin:end], headers, fault.way if fault is not None else None)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, way: Way | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        if self.store.kind == "az":
            self.send_header("x-ms-blob-type", "BlockBlob")
        self.end_headers()
        if self.command == "HEAD":
            return
        if way == "slow":
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                if self.store.stopping.wait(1):
                    break
            self.close_connection = True
        elif way == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)


def make_etag(content: Content) -> str:
    """Return the ETag of an object."""
    named = bytes(content.path) if isinstance(content, StoredFile) else content
    return f'"{hashlib.md5(named).hexdigest()}"'


def _s3_list(page: list[tuple[str, bool]], objects: dict[str, bytes], following: str) -> str:
    text = "".join(
        f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
        if is_folder
        else f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-23T03:00:00.000Z</LastModified>"
        f"<ETag>{escape(make_etag(objects[key]))}</ETag><Size>{len(objects[key])}</Size></Contents>"
        for key, is_folder in page
    )
    token = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return f"<ListBucketResult>{token}{text}</ListBucketResult>"


def _azure_list(page: list[tuple[str, bool]], objects: dict[str, bytes], following: str) -> str:
    """Write a listing as Azure does: the ETags have no quotes there."""
    text = "".join(
        f"<BlobPrefix><Name>{escape(key)}</Name></BlobPrefix>"
        if is_folder
        else f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{TIME}</Last-Modified>"
        f"<Etag>{escape(make_etag(objects[key])[1:-1])}</Etag><Content-Length>{len(objects[key])}</Content-Length><Content-Type>x</Content-Type></Properties></Blob>"
        for key, is_folder in page
    )
    return f"<EnumerationResults><Blobs>{text}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
