"""Finds the job in a Python script: the first framework that recognises the script's calls, or a command that they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.files import JobFiles, find_pinned_versions
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.python_source.evaluator import read_python_file
from ckptcheck.jobs.python_source.python_launcher import NO_SETTINGS, read_python_launch
from ckptcheck.jobs.python_source.script import Find
from ckptcheck.jobs.python_source.values import to_plain
from ckptcheck.text.file_io import real_path


def read_python_job(
    path: Path, shown: str, files: JobFiles, frameworks: Iterable[Framework]
) -> tuple[Document, Framework] | None:
    """Read a Python script that builds a job's configuration, without running it.

    Args:
        path: The script.
        shown: Its name in error messages.
        files: Reads it, and the modules beside it that it imports.
        frameworks: The readers to ask.

    Returns the configuration and its framework; None if no framework knows the script's calls. Raises CkptcheckError.
    """
    text = files.text(path, shown)
    name = files.name(path)
    frameworks = list(frameworks)
    packages = frozenset(framework.package for framework in frameworks)
    script = read_python_file(
        text,
        name,
        find=find_modules_beside(path.parent, files.name, lambda file: files.text(file, files.name(file)), packages),
        environment=files.given,
        results=NO_SETTINGS,
    )
    for framework in frameworks:
        document = framework.read_python(script) if framework.read_python is not None else None
        if document is not None:
            found = document, framework
            break
    else:
        launched = read_python_launch(script, files, path, frameworks)
        if launched is None:
            return None
        found = launched
    document, framework = found
    document.notes += script.notes
    document.defaulted |= script.defaulted
    document.versions |= find_pinned_versions(text, name)
    for variable, value in script.environment.items():
        plain, reason = to_plain(value)
        document.environment.setdefault(str(variable), Leaf(plain, str(variable), name, None, reason))
    return document, framework


def require_python_job(
    path: Path, shown: str, files: JobFiles, frameworks: Iterable[Framework]
) -> tuple[Document, Framework]:
    """Read a Python script as `read_python_job` does. Raises CkptcheckError also if it builds no configuration."""
    found = read_python_job(path, shown, files, frameworks)
    if found is None:
        raise CkptcheckError(
            f"{shown} builds no configuration that ckptcheck knows, such as trl.GRPOConfig(…), and starts no job that it knows",
            hint="name the launch script or the configuration file that the job takes",
        )
    return found


def find_modules_beside(
    folder: Path, shown: Callable[[Path], str], read: Callable[[Path], str], others: Collection[str] = ()
) -> Find:
    """Return a function that finds ``a.b`` as ``a/b.py`` in a folder and in the four above it.

    Args:
        folder: The script's folder.
        shown: Returns the name of a file for the report.
        read: Returns the text of a file.
        others: Packages that are not looked for.
    """
    folders = [folder, *list(real_path(folder).parents)[:4]]

    def find(module: str) -> tuple[str, str] | None:
        parts = module.split(".")
        if parts[0] in others or not all(part.isidentifier() for part in parts):
            return None
        for start in folders:
            for file in (start.joinpath(*parts[:-1], f"{parts[-1]}.py"), start.joinpath(*parts, "__init__.py")):
                try:
                    if file.is_file():
                        return read(file), shown(file)
                except (OSError, CkptcheckError):
                    return None
        return None

    return find
