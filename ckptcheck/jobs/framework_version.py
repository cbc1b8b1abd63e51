"""Finds which version of its framework a job runs with, in the job's files and in those of the folders around it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ckptcheck.jobs.dated_defaults import FrameworkVersion, Table
from ckptcheck.text.file_io import read_regular_file, real_path

LARGEST = 8_000_000
"""Largest file that is searched, in bytes; the lock file of a large project has about two megabytes."""
HIGHEST = 8
"""How many folders above the job's are looked at for the framework's own checkout."""
PIN_FILES = ("requirements*.txt", "pyproject.toml", "uv.lock", "poetry.lock", "Dockerfile*", "*.dockerfile")
"""Files beside a job that pin packages."""
TAG = re.compile(r"(?:^|verl)v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)(?:$|[-.](?!\d))|(20\d\d)-?([01]\d)-?([0-3]\d)")
"""The version or the date in an image's tag: v0.5.0, app-verl0.5-…, nightly-dev-20260801a."""
PROJECT_FILES = (".git", "pyproject.toml", "setup.py")
"""What the top folder of a project has, to which files that pin packages are looked for."""
COMMENT = re.compile(r"^# /// script$(?s:.*?)^# ///$|(?:^|(?<=[ \t]))#(?!SBATCH|PBS|BSUB).*", re.MULTILINE)
"""A comment, or the block of a Python script that names what it depends on (PEP 723); schedulers read some comments too."""
DOCSTRING = re.compile(r"\A(?:\s|#.*\n)*(\"\"\"|''')(?s:.*?)\1")
OWN = re.compile(r"^__version__\s*=\s*[\"'](\d[\w.+-]*)[\"']", re.MULTILINE)
NUMBERED = re.compile(r"MAJOR = (\d+)\s+MINOR = (\d+)\s+PATCH = (\d+)")


def find_framework_version(table: Table, files: Sequence[Path], folder: Path) -> FrameworkVersion:
    """Return the version that the job's files pin, or a file of the folders around it; an unknown one if none does.

    Args:
        table: The framework's table.
        files: The files that were read, in the order in which they count.
        folder: The folder of the job's first file.
    """
    for file, shown in _list_candidates(table, files, folder):
        text = _read(file)
        if text and (
            found := search_version(
                table, text, shown, is_own=any(file.match(f"*{own}") for own in table.version_files)
            )
        ):
            return found
    return FrameworkVersion()


def search_version(table: Table, text: str, name: str, *, is_own: bool = False) -> FrameworkVersion | None:
    """Return the version of a framework that a text names, or None where it names none.

    Args:
        table: The framework's table.
        text: The file's text.
        name: The file as the report names it.
        is_own: Whether the file is one in which the framework's own checkout keeps its version.
    """
    text = leave_out_comments(text)
    if is_own and (match := NUMBERED.search(text)):
        return FrameworkVersion(".".join(match.groups()), name)
    if is_own and (match := OWN.search(text)):
        return FrameworkVersion(match[1], f"{name}:{text.count(chr(10), 0, match.start()) + 1}")
    if is_own and re.fullmatch(r"\s*\d+(\.\d+)+\S*\s*", text):
        return FrameworkVersion(text.strip(), f"{name}:1")
    for pattern in _patterns(table):
        for match in pattern.finditer(text):
            if match[0].count("{") > match[0].count("}") and match[0].startswith("name"):
                continue  # the version of a dependency, in a table of its own
            version = next((group for group in match.groups() if group), "")
            if pattern.pattern.startswith("(?P<image>"):
                version = _version_of_tag(match["tag"])
            version = (
                version.strip("\"'").removeprefix("v") if re.match(r"[\"']?v\d", version) else version.strip("\"'")
            )
            if version:
                return FrameworkVersion(version, f"{name}:{text.count(chr(10), 0, match.start()) + 1}")
    return None


def leave_out_comments(text: str) -> str:
    r"""Return a text without its comments, in as many lines: what they say of versions need not be so.

    >>> leave_out_comments("pip install vllm==0.17.1  # not vllm==0.18.0\n#SBATCH --time 1:0\n# verl==0.7.0")
    'pip install vllm==0.17.1  \n#SBATCH --time 1:0\n'
    """
    text = COMMENT.sub(lambda match: match[0] if match[0].startswith("# ///") else "", text)
    return DOCSTRING.sub(lambda match: "\n" * match[0].count("\n"), text)


@cache
def _patterns(table: Table) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of a framework's pins, the surest first."""
    package = "|".join(re.escape(name) for name in table.packages)
    repository = "|".join(re.escape(name) for name in table.repositories)
    patterns = [
        rf"(?<![\w./-])(?:{package})(?:\[[\w, -]+\])?\s*(?:==\s*(\d[\w.]*)|~=\s*(\d+\.\d+\.\d+))",
        rf"(?:{repository})(?:\.git)?(?:@|\?rev=|\?tag=|/archive/(?:refs/tags/)?|/tree/)([\w.-]*\d[\w.-]*?)(?:\.zip|\.tar\.gz)?(?![\w.-])",
        rf"git\s{{1,9}}clone[^\n]{{0,200}}?(?:-b|--branch)[ =](\S{{1,80}})[^\n]{{0,200}}(?:{repository})",
        rf"git\s{{1,9}}clone[^\n]{{0,200}}?(?:{repository})(?:[^\n]{{0,200}}\n){{0,6}}?[^\n]{{0,200}}?git\s{{1,9}}checkout\s{{1,9}}([\w./-]{{1,80}})",
        # In one table of a TOML file, or side by side in a setup.py.
        rf"\bname\s*=\s*\"(?:{package})\",?(?:(?!\n\[)[^\x00]){{0,800}}?(?<![\w-])version\s*=\s*\"(\d[\w.+-]*)\"",
    ]
    if table.images:
        images = "|".join(re.escape(image) for image in table.images)
        patterns.insert(0, rf"(?P<image>{images}):(?P<tag>[\w.-]+)")
    return tuple(re.compile(pattern) for pattern in patterns)


def _version_of_tag(tag: str) -> str:
    match = TAG.search(tag)
    if match is None:
        return ""
    return match[1] or f"{match[2]}-{match[3]}-{match[4]}"


def _list_candidates(table: Table, files: Sequence[Path], folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, its name in the report): the job's files, the framework's own checkout, files that pin packages."""
    for file in files:
        yield file, file.name
    above = [folder, *real_path(folder).parents][: HIGHEST + 1]
    for place in above:
        for own in table.version_files:
            # A setup.py or pyproject.toml is the framework's own only where it names the framework, which its pattern asks.
            if os.path.exists(place / own):  # ``trl/../VERSION`` lies beside a folder trl
                yield place / own, os.path.normpath(own)
    yield from ((file, file.name) for file in list_pin_files(above))


def find_pin_around(pattern: re.Pattern[str], folder: Path) -> str:
    """Return the version of a package that a file of the project around a job pins; "" without one.

    A file that pins several versions, for several systems or extras, names none.

    Args:
        pattern: Matches a pin; one of its groups is the version.
        folder: The job's folder.
    """
    for file in list_pin_files([folder, *real_path(folder).parents][: HIGHEST + 1]):
        found = {
            group for match in pattern.finditer(leave_out_comments(_read(file))) for group in match.groups() if group
        }
        if len(found) == 1:
            return found.pop()
    return ""


def list_pin_files(above: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that pin packages in a folder, and in those above it up to the top of its project.

    above: the folder, and those above it.
    """
    tops = (index for sign in PROJECT_FILES for index, place in enumerate(above) if (place / sign).exists())
    for place in above[: next(tops, 0) + 1]:
        for pattern in PIN_FILES:
            try:
                yield from sorted(place.glob(pattern))[:20]
            except OSError:
                continue


def _read(file: Path) -> str:
    """Return the text of a file; "" where it is none, is too large or cannot be read."""
    try:
        raw = read_regular_file(real_path(file), LARGEST + 1)
        return "" if len(raw) > LARGEST else raw.decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
