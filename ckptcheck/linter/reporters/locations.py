"""Says where a finding's file is, in terms a CI service can match with the files of a repository."""

from __future__ import annotations

import os
import posixpath
from pathlib import PurePath

from ckptcheck.text.file_io import expand_home

HUB = "hf://"


def path_of(target: str, file: str | None) -> str:
    """Return the path of a file of the target, or of the target itself, with forward slashes.

    It is relative to the repository that GitHub Actions has checked out, elsewhere to the working folder, and
    absolute for what lies outside. On the Hub it is the path below the Hub: ``org/name@revision/config.json``.
    """
    if target.startswith(HUB):
        # normpath below the root: a file named ../../x stays on the Hub
        path = posixpath.normpath("/" + posixpath.join(target.removeprefix(HUB), (file or "").lstrip("/")))
        return path.lstrip("/") or "."
    whole = os.path.abspath(expand_home(target))
    folder = os.path.dirname(whole) if os.path.isfile(whole) else whole
    place = PurePath(os.path.abspath(os.path.join(folder, file)) if file else whole)
    root = os.path.abspath(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())
    return (place.relative_to(root) if place.is_relative_to(root) else place).as_posix()
