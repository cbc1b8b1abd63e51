"""Reads a model repository on the Hugging Face Hub by HTTP range requests; nothing is stored on disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from math import inf
from time import monotonic
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from ckptcheck.checkpoint.hub_address import shown_endpoint
from ckptcheck.checkpoint.hub_requests import (
    REVISIONS,
    Answer,
    HubClient,
    Question,
    RequestError,
    build_headers,
    find_endpoint,
)
from ckptcheck.checkpoint.source import CHAT_TEMPLATES, File, is_checkpoint_file
from ckptcheck.errors import CkptcheckError, EvidenceError

LISTING_SECONDS = 300.0
"""Seconds for opening a repository: the commit and all pages of the listing."""
MAX_ANSWER = 1 << 24
"""Longest answer of the API that is read, in bytes; a page of 1,000 files has about 300 kB."""
MAX_PAGES, MAX_FILES = 1000, 100_000
"""Most pages and files of a listing, against endless ones: ten times the Hub's recommendation for a folder (10,000)."""


class Repository:
    """The files at the top of a model repository, at the commit to which the revision points at opening.

    The constructor raises CkptcheckError if the user has to change something (name, revision, token, a setting) and
    EvidenceError if the Hub cannot be read now. `read` raises FileNotFoundError (the file is gone), PermissionError
    (access was revoked) and OSError (all else), each with one clause in `strerror`. Threads may share it.
    """

    local = None
    allows_sampling = False

    def __init__(self, name: str, revision: str | None, target: str) -> None:
        """`revision`: a branch, tag, commit or refs/pr/N; None is the main branch. `target`: what the user wrote."""
        self.target = target
        self._name, self._revision = name, revision or "main"
        self._opened_by = monotonic() + LISTING_SECONDS
        try:
            self._endpoint, headers = find_endpoint(), build_headers()
            question = Question(shown_endpoint(), name, self._revision, has_token="Authorization" in headers)
            self._client = HubClient(question, headers)
            self.commit, gated = self._resolve()
            self.files = {file.name: file for file in sorted(self._list(), key=lambda file: file.name)}
            if gated and (shard := next((file for file in self.files if file.endswith(".safetensors")), None)):
                self._get(self._url(shard), 1, start=0)  # the Hub lists a gated repository to everybody, so try to read
            self._opened_by = inf
        except RequestError as failure:
            # ckpt/step_100 may be a mistyped path or a repository
            bare = "" if target.startswith("hf://") else f"{target} is no file or folder here, and "
            error = EvidenceError if failure.code == errno.EIO else CkptcheckError
            raise error(bare + failure.text, failure.hint) from failure

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start` on, with one range request (two where it is redirected)."""
        try:
            answer = self._get(self._url(name), length, start) if length > 0 else Answer("", b"")
        except RequestError as failure:
            raise OSError(failure.code, failure.text) from failure
        listed = self.files[name].size if name in self.files else answer.total
        if answer.total not in (None, listed):
            raise OSError(errno.EIO, f"{answer.host} has {answer.total:,} bytes of it, but {listed:,} are listed")
        return answer.body

    def _get(self, url: str, most: int, start: int | None = None) -> Answer:
        return self._client.get(url, most, start, end=self._opened_by)

    def _url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HFValidationError

        try:
            return hf_hub_url(self._name, name, revision=self.commit, endpoint=self._endpoint)
        except HFValidationError as error:
            raise RequestError(errno.EINVAL, f"{self._name!r} names no repository", "write it as org/name") from error

    def _resolve(self) -> tuple[str, Any]:
        """Ask which commit the revision names, and whether the repository is gated."""
        self.commit = self._revision
        self._url("")  # checks the name
        if set(self._revision) <= {"."}:  # dots would climb up in the address
            raise RequestError(errno.ENOENT, f"{self._name} has no revision {self._revision!r}", REVISIONS)
        address = f"{self._endpoint}/api/models/{self._name}/revision/{quote(self._revision, safe='')}"
        model = _parse(self._get(f"{address}?expand=sha&expand=gated", MAX_ANSWER), _Model)
        return model.sha, model.gated

    def _list(self, folder: str = "") -> Iterator[File]:
        """List the files at the top of the repository, page by page, and the chat templates in their folder."""
        tree = f"{self._endpoint}/api/models/{self._name}/tree/{self.commit}{folder}"
        following, count, has_templates = "recursive=false&expand=false", 0, False
        for _ in range(MAX_PAGES):
            query = following
            answer = self._get(f"{tree}?{query}", MAX_ANSWER)
            entries = _parse(answer, list[_Entry])
            if (count := count + len(entries)) > MAX_FILES:
                raise RequestError(errno.EIO, f"{answer.host} lists more than {MAX_FILES:,} files of {self._name}")
            yield from (
                File(one.path, one.size) for one in entries if one.type == "file" and is_checkpoint_file(one.path)
            )
            has_templates |= any(entry.type == "directory" and entry.path == CHAT_TEMPLATES for entry in entries)
            following = answer.following
            if not following or following == query:
                break
        else:
            text = f"{answer.host} lists the files of {self._name} on more than {MAX_PAGES:,} pages"
            raise RequestError(errno.EIO, text)
        if has_templates and not folder:
            yield from self._list(f"/{CHAT_TEMPLATES}")


class _Model(msgspec.Struct):
    sha: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40,64}$")]
    gated: bool | str | None = None


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


def _parse(answer: Answer, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            errno.EIO, f"{answer.host} answers, but not as a Hub does", "look for a login page"
        ) from error
