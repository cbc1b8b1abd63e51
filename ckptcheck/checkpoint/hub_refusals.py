"""Explains in one clause why a request to the Hugging Face Hub failed, and what to do about it."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

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


def describe_refusal(response: Any, question: Question) -> RequestError:
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
        return RequestError(errno.EIO, f"{host} is out of order ({words})", "try again later", wait)
    if response.history and host != host_of(response.history[0].url):
        return RequestError(errno.EIO, f"{host}, where the Hub keeps its contents, does not hand it out ({words})")
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


def describe_broken_request(
    error: Any, http: Any, url: str, connect_seconds: float, read_seconds: float
) -> RequestError:
    """Describe a request that got no answer.

    Args:
        error: what the HTTP client raised.
        http: the client's library, httpx or httpx2.
        url: the address that was asked for.
        connect_seconds: how long a connection could take.
        read_seconds: for how long the server could send nothing.
    """
    host = host_of(error.request.url if getattr(error, "_request", None) else url)
    if isinstance(error, http.TimeoutException):
        waited = connect_seconds if isinstance(error, http.ConnectTimeout) else read_seconds
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
