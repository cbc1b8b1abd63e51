"""Sends requests to the Hugging Face Hub with a limit of time and bytes for each, and retries the ones that may still succeed.

huggingface_hub provides the endpoint, the token, the HTTP client and the errors, so its proxies, certificates and offline
mode apply here too. Retries are our own: its `http_backoff`, and so `HfApi.list_repo_tree`, has no time-out, waits as long as a
server says and closes the shared client while other threads read. Its `build_hf_headers` fetches a list for telemetry.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from math import inf
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ckptcheck import __version__
from ckptcheck.checkpoint.hub_address import HOSTS
from ckptcheck.checkpoint.hub_refusals import (
    LATER,
    LOG_IN,
    Question,
    RequestError,
    describe_broken_request,
    describe_refusal,
    host_of,
)
from ckptcheck.checkpoint.lost_time import LostTime
from ckptcheck.text.environment_files import require_plain_files

CONNECT_TIMEOUT = 10.0
"""Seconds that a connection may take."""
READ_TIMEOUT = 20.0
"""Seconds for which a server may send nothing."""
HEAD_SECONDS = 30.0
"""Seconds for a connection, all redirects and the head of the answer together: a server may send it letter by letter."""
WINDOW_SECONDS, WINDOW_BYTES = 30.0, 300_000
"""Seconds within which so many further bytes of an answer have to arrive, or its end: 10 kB a second."""
WAITS = (1.0, 2.0)
"""Seconds before the second and before the third try, which is the last."""
LONGEST_WAIT = 10.0
"""Longest Retry-After, in seconds, for which a request is repeated; a longer one becomes an error message."""
UNPACKED = ("identity", "gzip", "deflate")
"""Content encodings that are accepted, though none is requested. Others, or several nested, can make gigabytes of a kilobyte."""

CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:(\d{1,18})|\*)")


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request."""

    host: str
    body: bytes
    total: int | None = None
    """Bytes of the whole file; None where the server does not say."""
    following: str = ""
    """The query of the next page; empty for the last one."""


class TooSlow(RequestError):
    """An answer that brings too little in time."""

    def __init__(self, url: object) -> None:
        super().__init__(errno.EIO, f"{host_of(url)} answers too slowly", LATER)


class Progress:
    """Tells when an answer is given up."""

    def __init__(self, end: float) -> None:
        """Begin to wait for the head of the answer. end: when all of it is given up."""
        self._end, self._count = end, 0
        self.deadline = min(monotonic() + HEAD_SECONDS, end)
        self.is_given_up = False

    def begin_body(self) -> None:
        """Begin to wait for the next `WINDOW_BYTES`."""
        self._count, self.deadline = 0, min(monotonic() + WINDOW_SECONDS, self._end)

    def receive(self, number: int) -> bool:
        """Note that so many bytes of the body came; return whether they came in time."""
        self._count += number
        if self.is_given_up or monotonic() > self.deadline:
            return False
        if self._count >= WINDOW_BYTES:
            self.begin_body()
        return True


class HubClient:
    """Asks the Hub about one repository. Threads may share it."""

    def __init__(self, question: Question, headers: Mapping[str, str]) -> None:
        """Prepare requests about one repository.

        Args:
            question: the repository and its revision, to explain a refusal.
            headers: the headers of every request, from `build_headers`.
        """
        self._question, self._headers = question, headers
        self._lost_time, self._is_slow = LostTime(), False

    def get(self, url: str, most: int, start: int | None = None, *, end: float = inf) -> Answer:
        """Get up to `most` bytes, trying again where that may help. Raises RequestError.

        start: the first byte; None: the whole resource. end: the deadline for all tries, by `time.monotonic`.
        """
        for wait in WAITS:
            try:
                return self._get_once(url, most, start, end)
            except RequestError as failure:
                if failure.wait is None or failure.wait > LONGEST_WAIT:
                    raise
                sleep(max(wait, failure.wait))
        return self._get_once(url, most, start, end)

    def _get_once(self, url: str, most: int, start: int | None, end: float) -> Answer:
        """Get it in a thread of its own, which is abandoned if the answer does not come in time.

        The HTTP client limits the time for each part that arrives, but not for the whole: a head that comes letter by letter
        would hold it for days. The abandoned thread ends with its connection, at the latest with the program.
        """
        if self._is_slow or self._lost_time.is_over:
            raise RequestError(errno.EIO, f"{host_of(url)} answered too slowly, and is asked no more", LATER)
        begun, progress = monotonic(), Progress(end)
        outcome: SimpleQueue[Answer | BaseException] = SimpleQueue()

        def ask() -> None:
            try:
                outcome.put(self._ask(url, most, start, progress))
            except BaseException as error:
                outcome.put(error)

        Thread(target=ask, name="ckptcheck-hub", daemon=True).start()
        answer: Answer | BaseException | None = None
        try:
            while answer is None and (left := progress.deadline - monotonic()) > 0:
                with suppress(Empty):  # meanwhile the deadline may have moved
                    answer = outcome.get(timeout=left)
        finally:
            progress.is_given_up = True
        answer = answer or TooSlow(url)
        if isinstance(answer, BaseException):
            self._is_slow |= isinstance(answer, TooSlow)  # it will be so again
            self._lost_time.add(begun, monotonic())
            raise answer
        return answer

    def _ask(self, url: str, most: int, start: int | None, progress: Progress) -> Answer:
        client, http = _open_session()
        headers = (
            dict(self._headers) if start is None else {**self._headers, "Range": f"bytes={start}-{start + most - 1}"}
        )
        timeout = http.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        try:
            # A redirect to another origin takes the Range along and leaves the token behind: the client sees to both.
            with client.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
                return self._receive(response, most, start, progress)
        # ValueError: a header holds a malformed address
        except (http.HTTPError, http.InvalidURL, ValueError) as error:
            raise describe_broken_request(error, http, url, CONNECT_TIMEOUT, READ_TIMEOUT) from error

    def _receive(self, response: Any, most: int, start: int | None, progress: Progress) -> Answer:
        """Read the requested part of the answer and no more; leaving the stream early closes its connection."""
        host, total = host_of(response.url), None
        encoded = response.headers.get("Content-Encoding", "identity").lower() != "identity"
        if not encoded and "Content-Length" in response.headers:
            total = int(response.headers["Content-Length"])
        due = min(most, total or 0)
        if response.status_code == 416 and start is not None:
            return Answer(host, b"")
        if response.status_code == 206 and start is not None:
            sent = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if encoded or not sent or int(sent[1]) != start or int(sent[2]) >= start + most:
                raise RequestError(errno.EIO, f"{host} sent another part of the file than the one asked for")
            total = int(sent[3]) if sent[3] else None
            due = min(most, total - start) if total else int(sent[2]) + 1 - start
        elif response.status_code != 200:
            raise describe_refusal(response, self._question)
        elif start:
            raise RequestError(errno.EIO, f"{host} hands out only whole files, not parts of them")
        body = _read_body(response, most, due, progress)
        link = response.links.get("next", {}).get("url", "")  # a mirror may name another host: keep only the query
        return Answer(host, body, None if start is None else total, urlsplit(link).query)


def find_endpoint() -> str:
    """Return the Hub's address. Raises RequestError.

    huggingface_hub reads HF_ENDPOINT once, on import; this reads it again, so that a later value counts.
    """
    _require_host(os.environ.get("HF_ENDPOINT", ""))
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT or f"https://{HOSTS[0]}").rstrip("/")
    if not re.match(r"https?://[^/]", endpoint):
        raise RequestError(errno.EINVAL, "HF_ENDPOINT is no address of a Hub", "write it as https://…")
    return endpoint


def _require_host(address: str) -> None:
    """Raise RequestError for an address without a host, or with a port or brackets on which huggingface_hub fails on import."""
    try:
        parts = urlsplit(address)
        _ = parts.port
        is_host = bool(parts.hostname) or not parts.netloc
    except ValueError:
        is_host = False
    if not is_host:
        raise RequestError(errno.EINVAL, "HF_ENDPOINT has no valid host or port", "write it as https://…")


def build_headers() -> dict[str, str]:
    """Return the headers of every request. Raises RequestError, and CkptcheckError for a token file without an end.

    They decline compression, because servers that compress ignore ranges.
    """
    from huggingface_hub import constants, get_token

    stored = getattr(constants, "HF_STORED_TOKENS_PATH", "")
    require_plain_files({"the token file": constants.HF_TOKEN_PATH, "the file of stored tokens": stored})
    headers = {"User-Agent": f"ckptcheck/{__version__}", "Accept-Encoding": "identity"}
    try:
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except Exception as error:  # it may have to be fetched or refreshed over the network: anything can go wrong
        raise RequestError(errno.EACCES, f"your token cannot be had: {error}", LOG_IN) from error
    if token and not (token.isascii() and token.isprintable()):  # the HTTP client would show it in its error
        raise RequestError(errno.EACCES, "your token has characters that no token has", LOG_IN)
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _open_session() -> tuple[Any, Any]:
    """Return huggingface_hub's HTTP client, which threads share, and its library: httpx, or httpx2 since 2.0."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise RequestError(errno.EINVAL, "HF_HUB_OFFLINE forbids to ask the Hub", "unset it, or name a local folder")
    library = import_module(next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError").__module__)
    try:
        return get_session(), library
    # a malformed proxy, whose password the error may show, socks without its package, a lost file
    except (ImportError, OSError, ValueError, library.InvalidURL) as error:
        text = "the proxy or certificate settings of the environment cannot be used"
        text += f": {error}" if isinstance(error, ImportError) else ""
        raise RequestError(errno.EINVAL, text, "see HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE") from error


def _read_body(response: Any, most: int, due: int, progress: Progress) -> bytes:
    """Read up to `most` bytes, giving up on an answer that trickles or ends before `due` bytes."""
    if response.headers.get("Content-Encoding", "identity").lower() not in UNPACKED:
        raise RequestError(errno.EIO, f"{host_of(response.url)} sends its answer packed, though asked not to")
    parts: list[bytes] = []
    count = 0
    progress.begin_body()
    for part in response.iter_bytes():
        parts.append(part)
        count += len(part)
        if count >= most and response.headers.get("Content-Length") != str(most):
            break  # else read on to the end, so that the connection can be reused
        if not progress.receive(len(part)):
            raise TooSlow(response.url)
    if count < due:
        raise RequestError(errno.EIO, f"{host_of(response.url)} broke off its answer", LATER, wait=0)
    return b"".join(parts)[:most]
