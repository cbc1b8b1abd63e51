"""Says where a finding's file is, in terms a CI service can match with the files of a repository."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import PurePath
from urllib.parse import quote

from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home

HUB = "hf://"
SIDES = " ↔ "
"""The separator between the two targets of a comparison."""


def root_folder() -> str:
    """Return the folder that paths are relative to: the checkout of GitHub Actions, elsewhere the working folder."""
    return os.path.abspath(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())


def path_on_hub(target: str, file: str | None) -> str:
    """Return the path below the Hub's address of the page that shows a file, or the repository itself, percent-encoded.

    >>> path_on_hub("hf://org/name@refs/pr/1", "config.json"), path_on_hub("hf://org/name", None)
    ('org/name/blob/refs%2Fpr%2F1/config.json', 'org/name/tree/main')
    """
    name, _, revision = target.removeprefix(HUB).partition("@")
    # normpath below the root: a file named ../../x stays in the repository
    inner = posixpath.normpath("/" + (file or "")).lstrip("/")
    page = f"{'blob' if inner else 'tree'}/{_encode(revision or 'main', safe='')}"
    return "/".join(filter(None, (_encode(name), page, _encode(inner))))


def _encode(path: str, safe: str = "/") -> str:
    """Percent-encode any path."""
    try:
        return quote(path, safe=safe, errors="surrogateescape")  # a file name that is not UTF-8: its own bytes
    except UnicodeEncodeError:
        return quote(path, safe=safe, errors="surrogatepass")  # a surrogate out of JSON: no file has that name


def encode_uri(path: str) -> str:
    """Return a path as a URI: a relative one as it is, an absolute one with the scheme file.

    >>> encode_uri("a b/c.json"), encode_uri("/a b"), encode_uri("C:/a b"), encode_uri("s3://bucket/a b")
    ('a%20b/c.json', 'file:///a%20b', 'file:///C:/a%20b', 's3://bucket/a%20b')
    """
    if is_remote_address(path):
        scheme, _, rest = path.partition("://")
        return f"{scheme}://{_encode(rest)}"
    encoded = _encode(path)
    if path.startswith("/"):
        return "file://" + encoded
    return "file:///" + encoded.replace("%3A", ":", 1) if re.match(r"[A-Za-z]:/", path) else encoded


def select_side(target: str, file: str | None) -> str:
    """Return the target of a file in a report about two: the second, unless only the first has such a file."""
    first, separator, second = target.partition(SIDES)
    if not separator or os.path.exists(target):
        return target
    is_of_first = file is not None and not _exists(second, file) and _exists(first, file)
    return first if is_of_first else second


def _exists(target: str, file: str) -> bool:
    folder = expand_home(target)
    return os.path.exists(os.path.join(folder if os.path.isdir(folder) else os.path.dirname(folder), file))


def path_of(target: str, file: str | None) -> str:
    """Return the path of a file of the target, or of the target itself, with forward slashes.

    It is relative to the repository that GitHub Actions has checked out, elsewhere to the working folder, and
    absolute for what lies outside. On the Hub it is the path below the Hub: ``org/name@revision/config.json``; in an object store
    it is the address: ``s3://bucket/folder/config.json``.
    """
    target = select_side(target, file)
    if target.startswith(HUB):
        # normpath below the root: a file named ../../x stays on the Hub
        path = posixpath.normpath("/" + posixpath.join(target.removeprefix(HUB), (file or "").lstrip("/")))
        return path.lstrip("/") or "."
    if is_remote_address(target):
        return target.rstrip("/") + posixpath.normpath("/" + (file or "")).rstrip("/")
    whole = os.path.abspath(expand_home(target))
    folder = os.path.dirname(whole) if os.path.isfile(whole) else whole
    place = PurePath(os.path.abspath(os.path.join(folder, file)) if file else whole)
    root = root_folder()
    return (place.relative_to(root) if place.is_relative_to(root) else place).as_posix()
