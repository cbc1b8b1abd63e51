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
from dataclasses import dataclass
from http import HTTPStatus
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

RATE_LIMIT = re.compile(r";\s*r=0\s*;\s*t=(\d{1,9})")
"""What the Hub sends in place of Retry-After: "api";r=0;t=55."""
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
LATER = "check the network, or try again later"
REVISIONS = "name a branch, a tag or a commit of it"


class RequestError(Exception):
    """A request that failed.

    code: EIO for a failure of the Hub or the network, any other errno for one that the user has to fix.
    text: one clause. hint: what to do about it, or None.
    wait: seconds until a new try, None if a new try does not help.
    """

    def __init__(self, code: int, text: str, hint: str | None = None, wait: float | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.hint, self.wait = code, text, hint, wait


@dataclass(frozen=True)
class Question:
    """A request to the Hub, as far as it decides what a refusal means: with a token it means something else than without."""

    endpoint: str
    name: str
    """The repository."""
    revision: str
    has_token: bool


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
            raise RequestError(errno.EIO, f"{host_of(url)} answered too slowly, and is not asked again", LATER)
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
            raise _describe_broken_request(error, http, url) from error

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
            raise _describe_refusal(response, self._question)
        elif start:
            raise RequestError(errno.EIO, f"{host} serves only whole files, not ranges of bytes")
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
        raise RequestError(errno.EACCES, f"your token cannot be read: {error}", LOG_IN) from error
    if token and not (token.isascii() and token.isprintable()):  # the HTTP client would show it in its error
        raise RequestError(errno.EACCES, "your token has characters that no token has", LOG_IN)
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _open_session() -> tuple[Any, Any]:
    """Return huggingface_hub's HTTP client, which threads share, and its library: httpx, or httpx2 since 2.0."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise RequestError(
            errno.EINVAL, "HF_HUB_OFFLINE is set, so the Hub is not asked", "unset it, or name a local folder"
        )
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
        raise RequestError(
            errno.EIO, f"{host_of(response.url)} sends its answer compressed, although it was asked not to"
        )
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


def _describe_refusal(response: Any, question: Question) -> RequestError:
    """Describe an HTTP error. A 401 may mean that the repository does not exist."""
    from huggingface_hub import errors

    status, host, has_token, name = response.status_code, host_of(response.url), question.has_token, question.name
    wait = _find_wait(response)
    words = f"{status} {HTTPStatus(status).phrase}" if status in list(HTTPStatus) else str(status)
    if status == 429:
        hint = f"wait {wait:.0f} seconds" if wait else "wait some minutes"
        hint += "" if has_token else f", or {LOG_IN}"
        return RequestError(errno.EIO, f"{host} accepts no more requests for now ({words})", hint, wait)
    if status >= 500 or status == 408:
        return RequestError(errno.EIO, f"{host} has an internal error ({words})", "try again later", wait)
    if response.history and host != host_of(response.history[0].url):
        return RequestError(errno.EIO, f"{host}, where the Hub keeps its files, refuses to serve it ({words})")
    error = _find_typed_error(response)
    if isinstance(error, errors.GatedRepoError):
        text = "your token does not open it" if has_token else "can be read only after logging in"
        hint = "let the token read gated repositories" if has_token else LOG_IN
        hint += f", and ask for access at {question.endpoint}/{name}"
        return RequestError(errno.EACCES, f"{name} is gated and {text}", hint)
    if status == 401 and has_token and response.headers.get("X-Error-Code") != "RepoNotFound":
        # huggingface_hub reports this as a missing repository, unless the server's text blames the token.
        return RequestError(errno.EACCES, f"{host} does not accept your token", f"{LOG_IN} to one that is valid")
    if status == 403:
        hint = "check what your token may read" if has_token else LOG_IN
        return RequestError(errno.EACCES, f"{host} does not let you read {name} ({words})", hint)
    if isinstance(error, errors.RevisionNotFoundError):
        return RequestError(errno.ENOENT, f"{name} has no revision {question.revision!r}", REVISIONS)
    if isinstance(error, errors.EntryNotFoundError) or (status == 404 and "/resolve/" in response.url.path):
        return RequestError(errno.ENOENT, "it is no longer in the repository")
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        text = f"{host} has no repository {name} that {'your token may read' if has_token else 'is public'}"
        hint = "check its name" + ("" if has_token else f"; if it is private, {LOG_IN}")
        return RequestError(errno.ENOENT, text, hint)
    return RequestError(errno.EIO, f"{host} refuses the request ({words})")


def _describe_broken_request(error: Any, http: Any, url: str) -> RequestError:
    """Describe a request that got no answer. http: the client's library, httpx or httpx2."""
    host = host_of(error.request.url if getattr(error, "_request", None) else url)
    if isinstance(error, http.TimeoutException):
        waited = CONNECT_TIMEOUT if isinstance(error, http.ConnectTimeout) else READ_TIMEOUT
        text = f"{host} did not answer within {waited:g} seconds"
    elif isinstance(error, (http.ConnectError, http.ProxyError)):
        text = f"{host} cannot be reached: {error}"
    elif isinstance(error, (http.NetworkError, http.RemoteProtocolError)):
        text = f"{host} broke off its answer"
    else:
        return RequestError(errno.EIO, f"the request to {host} failed: {error}")
    return RequestError(errno.EIO, text, LATER, wait=0)


def host_of(url: object) -> str:
    """Return host and port of an address, without the password that it may carry."""
    return urlsplit(str(url)).netloc.rpartition("@")[2]


def _find_typed_error(response: Any) -> Exception | None:
    """Return huggingface_hub's exception for an HTTP error, by status, headers and address alone.

    `hf_raise_for_status` reads the whole body of a streamed answer, and a server may send one without end; so it gets a copy
    without a body.
    """
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    headers = {name: value for name, value in response.headers.items() if name.lower().startswith("x-error")}
    try:
        hf_raise_for_status(type(response)(response.status_code, headers=headers, request=response.request))
    except OSError as error:
        return error
    return None


def _find_wait(response: Any) -> float:
    """Return how many seconds the server asks to wait; 0 if it names none, or gives a date."""
    asked = re.fullmatch(r"\s*([0-9]{1,9})\s*", response.headers.get("Retry-After", ""))
    asked = asked or RATE_LIMIT.search(response.headers.get("RateLimit", ""))
    return float(asked[1]) if asked else 0.0
