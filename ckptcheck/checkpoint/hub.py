"""Reads a model repository on the Hugging Face Hub by HTTP range requests; nothing is stored on disk.

huggingface_hub provides the endpoint, the token, the HTTP client and the errors, so its proxies, certificates and offline
mode apply here too. Retries are our own: its `http_backoff`, and so `HfApi.list_repo_tree`, has no time-out, waits as long as a
server says and closes the shared client while other threads read. Its `build_hf_headers` fetches a list for telemetry.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from http import HTTPStatus
from importlib import import_module
from math import inf
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import msgspec

from ckptcheck import __version__
from ckptcheck.checkpoint.source import CHAT_TEMPLATES, File, is_checkpoint_file
from ckptcheck.errors import CkptcheckError, EvidenceError

CONNECT_TIMEOUT = 10.0
"""Seconds that a connection may take."""
READ_TIMEOUT = 30.0
"""Seconds for which a server may send nothing."""
SLOWEST = 10_000
"""Bytes per second below which an answer is given up, once READ_TIMEOUT has passed."""
WAITS = (1.0, 2.0)
"""Seconds before the second and before the third try, which is the last."""
LONGEST_WAIT = 10.0
"""The longest Retry-After, in seconds, after which a request is repeated; a longer one is reported to the user."""
HEAD_SECONDS = 90.0
"""Seconds for a connection, all redirects and the head of the answer together: a server may send it letter by letter."""
LISTING_SECONDS = 300.0
"""Seconds for opening a repository: the commit and all pages of the listing."""
MAX_ANSWER = 1 << 24
"""Longest answer of the API that is read, in bytes; a page of 1,000 files has about 300 kB."""
MAX_PAGES, MAX_FILES = 1000, 100_000
"""Most pages and files of a listing. The Hub recommends at most 10,000 files in a folder."""
MAX_LOST_SECONDS = 600.0
"""Seconds that all threads together wait for answers that are given up; then nothing more is asked of the repository."""
UNPACKED = ("identity", "gzip", "deflate")
"""How an answer may be packed, though none is asked to be. Others, and several at a time, make gigabytes of a kilobyte at once."""

CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:(\d{1,18})|\*)")
RATE_LIMIT = re.compile(r";\s*r=0\s*;\s*t=(\d{1,9})")
"""What the Hub sends in place of Retry-After: "api";r=0;t=55."""
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
LATER = "check the network, or try again later"
REVISIONS = "name a branch, a tag or a commit of it"


class Repository:
    """The files at the top of a model repository, all read at the commit that the revision names when it is opened.

    The constructor raises CkptcheckError where the user has to change something (name, revision, token, a setting) and
    EvidenceError where the Hub cannot be read now. `read` raises FileNotFoundError (the file is gone), PermissionError
    (access was taken away) and OSError (all else), each with one clause in `strerror`. Threads may share it.
    """

    local = None
    allows_sampling = False

    def __init__(self, name: str, revision: str | None, target: str) -> None:
        """`revision`: a branch, tag, commit or refs/pr/N; None is the main branch. `target`: what the user wrote."""
        self.target = target
        self._name, self._revision = name, revision or "main"
        self._lost_seconds = 0.0
        self._opened_by = monotonic() + LISTING_SECONDS
        try:
            self._endpoint, self._headers = _endpoint(), _headers()
            self.commit, gated = self._resolve()
            self.files = {file.name: file for file in sorted(self._list(), key=lambda file: file.name)}
            if gated and (shard := next((file for file in self.files if file.endswith(".safetensors")), None)):
                self._get(self._url(shard), 1, start=0)  # the Hub lists a gated repository to everybody
            self._opened_by = inf
        except _RequestError as failure:
            # ckpt/step_100 may be a path with a typing error in it as well as a repository
            bare = "" if target.startswith("hf://") else f"{target} is no file or folder here, and "
            error = EvidenceError if failure.code == errno.EIO else CkptcheckError
            raise error(bare + failure.text, failure.hint) from failure

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start` on, with one range request (two where it is redirected)."""
        try:
            answer = self._get(self._url(name), length, start) if length > 0 else _Answer("", b"")
        except _RequestError as failure:
            raise OSError(failure.code, failure.text) from failure
        listed = self.files[name].size if name in self.files else answer.total
        if answer.total not in (None, listed):
            raise OSError(errno.EIO, f"{answer.host} has {answer.total:,} bytes of it, but {listed:,} are listed")
        return answer.body

    def _url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HFValidationError

        try:
            return hf_hub_url(self._name, name, revision=self.commit, endpoint=self._endpoint)
        except HFValidationError as error:
            raise _RequestError(errno.EINVAL, f"{self._name!r} names no repository", "write it as org/name") from error

    def _resolve(self) -> tuple[str, Any]:
        """Ask which commit the revision names, and whether the repository is gated."""
        self.commit = self._revision
        self._url("")  # checks the name
        if set(self._revision) <= {"."}:  # it would be a step up in the address
            raise _RequestError(errno.ENOENT, f"{self._name} has no revision {self._revision!r}", REVISIONS)
        address = f"{self._endpoint}/api/models/{self._name}/revision/{quote(self._revision, safe='')}"
        model = _parsed(self._get(f"{address}?expand=sha&expand=gated", MAX_ANSWER), _Model)
        return model.sha, model.gated

    def _list(self, folder: str = "") -> Iterator[File]:
        """List the files at the top of the repository, page by page, and the chat templates in their folder."""
        tree = f"{self._endpoint}/api/models/{self._name}/tree/{self.commit}{folder}"
        following, count, has_templates = "recursive=false&expand=false", 0, False
        for _ in range(MAX_PAGES):
            query = following
            answer = self._get(f"{tree}?{query}", MAX_ANSWER)
            entries = _parsed(answer, list[_Entry])
            if (count := count + len(entries)) > MAX_FILES:
                raise _RequestError(errno.EIO, f"{answer.host} lists more than {MAX_FILES:,} files of {self._name}")
            yield from (
                File(one.path, one.size) for one in entries if one.type == "file" and is_checkpoint_file(one.path)
            )
            has_templates |= any(entry.type == "directory" and entry.path == CHAT_TEMPLATES for entry in entries)
            following = answer.following
            if not following or following == query:
                break
        else:
            text = f"{answer.host} lists the files of {self._name} on more than {MAX_PAGES:,} pages"
            raise _RequestError(errno.EIO, text)
        if has_templates and not folder:
            yield from self._list(f"/{CHAT_TEMPLATES}")

    def _get(self, url: str, most: int, start: int | None = None) -> _Answer:
        """Get up to `most` bytes, from `start` on (None: the whole resource), trying again where that may help."""
        for wait in WAITS:
            try:
                return self._get_once(url, most, start)
            except _RequestError as failure:
                if failure.wait is None or failure.wait > LONGEST_WAIT:
                    raise
                sleep(max(wait, failure.wait))
        return self._get_once(url, most, start)

    def _get_once(self, url: str, most: int, start: int | None) -> _Answer:
        """Get it in a thread of its own, which is left alone where the answer does not come in time.

        The client has limits of time for each part that arrives, and none for the whole: a head that comes letter by letter
        keeps it for days. The thread ends with its connection, at the latest with the program.
        """
        if self._lost_seconds > MAX_LOST_SECONDS:
            raise _RequestError(errno.EIO, f"{_host(url)} answered too slowly too often, and is asked no more", LATER)
        begun = monotonic()
        seconds = min(HEAD_SECONDS + READ_TIMEOUT + most / SLOWEST, max(0.0, self._opened_by - begun))
        outcome: SimpleQueue[_Answer | BaseException] = SimpleQueue()
        given_up = Event()

        def ask() -> None:
            try:
                outcome.put(self._ask(url, most, start, given_up))
            except BaseException as error:
                outcome.put(error)

        Thread(target=ask, name="ckptcheck-hub", daemon=True).start()
        try:
            answer = outcome.get(timeout=seconds)
        except Empty:
            answer = _RequestError(errno.EIO, f"{_host(url)} answers too slowly", LATER)
        finally:
            given_up.set()
        if isinstance(answer, BaseException):
            self._lost_seconds += monotonic() - begun
            raise answer
        return answer

    def _ask(self, url: str, most: int, start: int | None, given_up: Event) -> _Answer:
        client, http = _session()
        headers = self._headers if start is None else {**self._headers, "Range": f"bytes={start}-{start + most - 1}"}
        timeout = http.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        try:
            # A redirect to another origin takes the Range along and leaves the token behind: the client sees to both.
            with client.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
                return self._received(response, most, start, given_up)
        # ValueError: a header has an address that is none
        except (http.HTTPError, http.InvalidURL, ValueError) as error:
            raise _broken(error, http, url) from error

    def _received(self, response: Any, most: int, start: int | None, given_up: Event) -> _Answer:
        """Read what was asked for of the answer and no more; leaving the stream early closes its connection."""
        host, total = _host(response.url), None
        encoded = response.headers.get("Content-Encoding", "identity").lower() != "identity"
        if not encoded and "Content-Length" in response.headers:
            total = int(response.headers["Content-Length"])
        due = min(most, total or 0)
        if response.status_code == 416 and start is not None:
            return _Answer(host, b"")
        if response.status_code == 206 and start is not None:
            sent = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if encoded or not sent or int(sent[1]) != start or int(sent[2]) >= start + most:
                raise _RequestError(errno.EIO, f"{host} sent another part of the file than the one asked for")
            total = int(sent[3]) if sent[3] else None
            due = min(most, total - start) if total else int(sent[2]) + 1 - start
        elif response.status_code != 200:
            raise self._refusal(response)
        elif start:
            raise _RequestError(errno.EIO, f"{host} hands out only whole files, not parts of them")
        body = _body(response, most, due, given_up)
        link = response.links.get("next", {}).get("url", "")  # a mirror's may name another host: only the query counts
        return _Answer(host, body, None if start is None else total, urlsplit(link).query)

    def _refusal(self, response: Any) -> _RequestError:
        """Describe an HTTP error; a 401 may mean that there is no such repository."""
        from huggingface_hub import errors

        status, host, has_token = response.status_code, _host(response.url), "Authorization" in self._headers
        wait = _wait(response)
        words = f"{status} {HTTPStatus(status).phrase}" if status in list(HTTPStatus) else str(status)
        if status == 429:
            hint = f"wait {wait:.0f} seconds" if wait else "wait some minutes"
            hint += "" if has_token else f", or {LOG_IN}"
            return _RequestError(errno.EIO, f"{host} accepts no more requests for now ({words})", hint, wait)
        if status >= 500 or status == 408:
            return _RequestError(errno.EIO, f"{host} is out of order ({words})", "try again later", wait)
        if response.history and host != _host(response.history[0].url):
            return _RequestError(errno.EIO, f"{host}, where the Hub keeps its contents, does not hand it out ({words})")
        error = _typed_error(response)
        if isinstance(error, errors.GatedRepoError):
            text = "your token does not open it" if has_token else "can be read only after logging in"
            hint = "let the token read gated repositories" if has_token else LOG_IN
            hint += f", and ask for access at {self._endpoint}/{self._name}"
            return _RequestError(errno.EACCES, f"{self._name} is gated and {text}", hint)
        if status == 401 and has_token and response.headers.get("X-Error-Code") != "RepoNotFound":
            # huggingface_hub takes this for a missing repository, unless the server says in words that the token is wrong.
            return _RequestError(errno.EACCES, f"{host} does not accept your token", f"{LOG_IN} to one that is valid")
        if status == 403:
            hint = "check what your token may read" if has_token else LOG_IN
            return _RequestError(errno.EACCES, f"{host} does not let you read {self._name} ({words})", hint)
        if isinstance(error, errors.RevisionNotFoundError):
            return _RequestError(errno.ENOENT, f"{self._name} has no revision {self._revision!r}", REVISIONS)
        if isinstance(error, errors.EntryNotFoundError) or (status == 404 and "/resolve/" in response.url.path):
            return _RequestError(errno.ENOENT, "it is no longer in the repository")
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
            text = f"{host} has no repository {self._name} that {'your token may read' if has_token else 'is public'}"
            hint = "check its name" + ("" if has_token else f"; if it is private, {LOG_IN}")
            return _RequestError(errno.ENOENT, text, hint)
        return _RequestError(errno.EIO, f"{host} refuses the request ({words})")


def _typed_error(response: Any) -> Exception | None:
    """Return huggingface_hub's exception for an HTTP error, by status, headers and address alone.

    `hf_raise_for_status` reads the whole body of a streamed answer, which a server may send for as long as it likes; so it
    gets a copy without a body.
    """
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    headers = {name: value for name, value in response.headers.items() if name.lower().startswith("x-error")}
    try:
        hf_raise_for_status(type(response)(response.status_code, headers=headers, request=response.request))
    except OSError as error:
        return error
    return None


class _RequestError(Exception):
    """A request that failed.

    code: EIO for a failure of the Hub or the network, any other errno for one that the user has to mend.
    wait: seconds until a new try, None where a new try does not help.
    """

    def __init__(self, code: int, text: str, hint: str | None = None, wait: float | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.hint, self.wait = code, text, hint, wait


class _Answer(msgspec.Struct, frozen=True):
    """The answer to a request."""

    host: str
    body: bytes
    total: int | None = None
    """Bytes of the whole file; None where the server does not say."""
    following: str = ""
    """The query of the next page; empty for the last one."""


class _Model(msgspec.Struct):
    sha: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40,64}$")]
    gated: bool | str | None = None


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


def _endpoint() -> str:
    """Return the Hub's address. huggingface_hub reads HF_ENDPOINT on import; one that is set later counts too."""
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if not re.match(r"https?://[^/]", endpoint):
        raise _RequestError(errno.EINVAL, f"HF_ENDPOINT is {endpoint!r}, no address of a Hub", "write it as https://…")
    return endpoint


def _headers() -> dict[str, str]:
    """Return what goes with every request. Servers that may compress ignore ranges, so that is declined."""
    from huggingface_hub import constants, get_token

    headers = {"User-Agent": f"ckptcheck/{__version__}", "Accept-Encoding": "identity"}
    try:
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except Exception as error:  # it may have to be fetched or refreshed over the network: anything can go wrong
        raise _RequestError(errno.EACCES, f"your token cannot be had: {error}", LOG_IN) from error
    if token and not (token.isascii() and token.isprintable()):  # the HTTP client would show it in its error
        raise _RequestError(errno.EACCES, "your token has characters that no token has", LOG_IN)
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _session() -> tuple[Any, Any]:
    """Return huggingface_hub's HTTP client, which threads share, and the library it is of: httpx, httpx2 since 2.0."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise _RequestError(errno.EINVAL, "HF_HUB_OFFLINE forbids to ask the Hub", "unset it, or name a local folder")
    library = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError").__module__
    try:
        return get_session(), import_module(library)
    except (ImportError, OSError, ValueError) as error:  # a malformed proxy, socks without its package, a lost file
        text = f"the proxy or certificate settings of the environment cannot be used: {error}"
        raise _RequestError(errno.EINVAL, text, "see HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE") from error


def _body(response: Any, most: int, due: int, given_up: Event) -> bytes:
    """Read up to `most` bytes, giving up on an answer that trickles or ends before `due` bytes."""
    if response.headers.get("Content-Encoding", "identity").lower() not in UNPACKED:
        raise _RequestError(errno.EIO, f"{_host(response.url)} sends its answer packed, though asked not to")
    begun, parts, count = monotonic(), [], 0
    for part in response.iter_bytes():
        parts.append(part)
        count += len(part)
        if given_up.is_set():
            break
        if count >= most and response.headers.get("Content-Length") != str(most):
            break  # else the end is next, and after it the connection can be used again
        if monotonic() - begun > READ_TIMEOUT + count / SLOWEST:
            raise _RequestError(errno.EIO, f"{_host(response.url)} answers too slowly", LATER)
    if count < due:
        raise _RequestError(errno.EIO, f"{_host(response.url)} broke off its answer", LATER, wait=0)
    return b"".join(parts)[:most]


def _broken(error: Any, http: Any, url: str) -> _RequestError:
    """Describe a request that got no answer."""
    host = _host(error.request.url if getattr(error, "_request", None) else url)
    if isinstance(error, http.TimeoutException):
        waited = CONNECT_TIMEOUT if isinstance(error, http.ConnectTimeout) else READ_TIMEOUT
        text = f"{host} did not answer within {waited:g} seconds"
    elif isinstance(error, (http.ConnectError, http.ProxyError)):
        text = f"{host} cannot be reached: {error}"
    elif isinstance(error, (http.NetworkError, http.RemoteProtocolError)):
        text = f"{host} broke off its answer"
    else:
        return _RequestError(errno.EIO, f"the request to {host} failed: {error}")
    return _RequestError(errno.EIO, text, LATER, wait=0)


def _wait(response: Any) -> float:
    """Return how many seconds the server asks to wait; 0 where it does not say, or gives a date."""
    asked = re.fullmatch(r"\s*([0-9]{1,9})\s*", response.headers.get("Retry-After", ""))
    asked = asked or RATE_LIMIT.search(response.headers.get("RateLimit", ""))
    return float(asked[1]) if asked else 0.0


def _parsed(answer: _Answer, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _RequestError(
            errno.EIO, f"{answer.host} answers, but not as a Hub does", "look for a login page"
        ) from error


def _host(url: object) -> str:
    """Return host and port of an address, which may carry a password that nobody is to see."""
    return urlsplit(str(url)).netloc.rpartition("@")[2]
