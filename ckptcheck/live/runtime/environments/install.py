"""Builds an environment from its recipe: Python, torch, packages, stand-ins and patches; then imports the engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.probe import probe_python
from ckptcheck.live.runtime.environments.recipe import Recipe
from ckptcheck.live.runtime.environments.store import (
    READY,
    BuildInfo,
    Environment,
    find_environment,
    lock_environment,
    remove_environment,
)
from ckptcheck.runners.child_python import run_python, start_python
from ckptcheck.text.file_io import replace_file

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch without CUDA is published (https://pytorch.org/get-started/locally)."""


Progress = Callable[[int, int], None]
"""Gets the number of packages that pip has processed, and of all packages."""


@dataclass(frozen=True)
class InstallOptions:
    """How to build an environment."""

    python: Path | None = None
    """The interpreter to build on; None: one of the versions that the recipe was tested with."""
    index: str | None = None
    """URL of the index for packages; None leaves it to pip's configuration."""
    torch_index: str | None = None
    """URL of the index for torch; None: see `install_torch`."""
    force: bool = False
    """Whether to build an environment that is ready anew."""
    say: Callable[[str], None] = lambda _: None
    """Gets a line for each phase."""
    progress: Progress | None = None


def install(recipe: Recipe, options: InstallOptions) -> Environment:
    """Return the environment of a recipe; build it unless it is ready, and first the base environment of the recipe.

    Two installers do not collide: the second waits, and finds the environment that the first has built. An interrupted
    installer leaves a broken environment, which the next one rebuilds. Raises CkptcheckError with the failure and the log.
    """
    if recipe.base is not None:
        install(recipe.base, replace(options, force=False))
    with lock_environment(find_environment(recipe), options.say) as waited:
        environment = find_environment(recipe)
        if environment.state == "ready" and (waited or not options.force):
            has_build_options = options.python or options.index or options.torch_index
            force_hint = "; --force rebuilds it with the options given" if has_build_options else ""
            options.say(f"{recipe.name} is ready: {environment.folder}{force_hint}")
            return environment
        if environment.state in ("stale", "broken"):
            state_description = "from another recipe" if environment.state == "stale" else "only half built"
            options.say(f"{recipe.name}: what is there is {state_description}; it is built anew")
        # before anything is removed: the environment that is there may still work where the new one cannot be built
        python = _find_python(recipe, options)
        remove_environment(environment)
        try:
            return _build(environment, python, options)
        except BaseException:
            with contextlib.suppress(CkptcheckError):
                remove_environment(environment)
            raise


def _find_python(recipe: Recipe, options: InstallOptions) -> Path:
    """Return the Python to build on, once it has run. Raises CkptcheckError if there is none, or it does not run."""
    if recipe.base is not None:  # its packages are compiled for the Python of the base environment
        return find_environment(recipe.base).python
    python = options.python or _find_base_python(recipe)
    probe_python(python, ())
    return python


def _build(environment: Environment, python: Path, options: InstallOptions) -> Environment:
    recipe, say = environment.recipe, options.say
    base = find_environment(recipe.base) if recipe.base is not None else None
    with environment.log.open("wb") as log:
        say(f"{recipe.name}: an environment of {python}")
        _create_venv(environment, python, log)
        if base is not None:
            show_packages(base.python, environment.python)
        pip = Pip(environment.python, log, options.index)
        if recipe.torch:
            say(f"{recipe.name}: {recipe.torch}")
            install_torch(pip, recipe.torch, options)
        other_packages = [package for package in recipe.packages if package != recipe.torch]
        if other_packages:
            say(f"{recipe.name}: {len(other_packages)} packages")
            pip.install(other_packages, progress=options.progress)
    python_info = probe_python(environment.python, recipe.version_packages)
    _apply_changes(recipe, Path(python_info.site))
    say(f"{recipe.name}: import {recipe.contents.module}")
    _import_engine(environment)
    build_info = BuildInfo(recipe.digest(), python_info.python, python_info.versions, _count_bytes(environment.folder))
    replace_file(environment.folder / READY, msgspec.json.encode(build_info))
    return find_environment(recipe)


def _find_base_python(recipe: Recipe) -> Path:
    """Find a Python that the recipe was tested with: the one that runs ckptcheck, or one on the PATH."""
    versions = recipe.contents.pythons
    if f"{sys.version_info.major}.{sys.version_info.minor}" in versions:
        return Path(sys.executable)
    for version in versions:
        path = shutil.which(f"python{version}")
        if path is not None and os.path.isabs(path):  # else PATH names the working directory
            with contextlib.suppress(CkptcheckError):
                if probe_python(Path(path), ()).python.startswith(f"{version}."):
                    return Path(path)
    raise CkptcheckError(
        f"{recipe.name} was tried with Python {' and '.join(versions)}, and there is none on the PATH",
        "install one, or name another with --python PATH",
    )


def _create_venv(environment: Environment, base: Path, log: IO[bytes]) -> None:
    """Create the virtual environment. With a base environment it uses the base's pip and setuptools."""
    options = ["--without-pip"] if environment.recipe.base is not None else []
    command = ["-m", "venv", *options, str(environment.folder)]
    log.write(f"$ {base} {' '.join(command)}\n".encode())
    log.flush()
    try:
        process = run_python(command, base)
    except OSError as error:
        raise CkptcheckError(f"cannot run {base}: {error.strerror or error}") from error
    output = process.stdout + process.stderr
    log.write(output)
    if process.returncode:
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        raise CkptcheckError(
            f"{base} cannot create a virtual environment: {lines[-1] if lines else f'exit code {process.returncode}'}",
            f"on Debian and Ubuntu the package python3-venv is needed; the log is {environment.log}",
        )


def show_packages(base: Path, python: Path) -> None:
    """Let a Python see the packages of another one after its own. Its pip takes them as installed, and keeps them."""
    base_site = probe_python(base, ()).site
    (Path(probe_python(python, ()).site) / "base.pth").write_text(f"{base_site}\n", encoding="utf-8")


def install_torch(pip: Pip, torch: str, options: InstallOptions) -> None:
    """Install the CPU build of torch, and never fetch gigabytes of CUDA that nothing here uses.

    On Linux PyPI holds the CUDA build. The CPU build has a version of its own (2.13.0+cpu): pip looks for it first in the
    indexes of its configuration, then in PyTorch's own. From an index that the user named, pip installs torch as it is.
    """
    if options.torch_index:
        pip.install([torch], "--index-url", options.torch_index)
        return
    if not sys.platform.startswith("linux"):
        pip.install([torch])
        return
    try:
        pip.install([f"{torch}+cpu"])
    except CkptcheckError:
        try:
            pip.install([f"{torch}+cpu"], "--extra-index-url", CPU_INDEX)
        except CkptcheckError as error:
            raise CkptcheckError(
                error.message, f"--torch-index URL names an index that has the CPU build of torch; {error.hint}"
            ) from error


class Pip:
    """Pip of one environment. Its output goes to a log, and its last error into the exception."""

    def __init__(self, python: Path, log: IO[bytes], index: str | None = None) -> None:
        self._python = python
        self._log = log
        self._index = ["--index-url", index] if index else []

    def install(self, packages: Sequence[str], *options: str, progress: Progress | None = None) -> None:
        """Install packages without their dependencies. Raises CkptcheckError with pip's own last error."""
        command = ["-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
        command += [*(self._index if "--index-url" not in options else ()), *options, *packages]
        error = self._run(command, len(packages), progress)
        if error is not None:
            raise CkptcheckError(
                f"pip could not install {_describe_packages(packages)}: {error}", f"its log is {self._log.name}"
            )

    def _run(self, command: list[str], total: int, progress: Progress | None) -> str | None:
        """Run a command and return its last error, None if it succeeded."""
        self._log.write(f"\n$ {self._python} {' '.join(command)}\n".encode())
        self._log.flush()
        processed, last_error, last_line = 0, "", ""
        with start_python(
            command, self._python, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._log.write(line)
                    text = line.decode(errors="replace").strip()
                    last_line = text or last_line
                    if text.startswith("ERROR:"):
                        last_error = text.removeprefix("ERROR:").strip()
                    if text.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                        processed += 1
                        if progress is not None:
                            progress(min(processed, total), total)
            except BaseException:
                process.kill()
                raise
            finally:
                self._log.flush()
        code = process.returncode
        return None if code == 0 else last_error or last_line or f"exit code {code}"


def _describe_packages(packages: Sequence[str]) -> str:
    return packages[0] if len(packages) == 1 else f"{len(packages)} packages"


def _apply_changes(recipe: Recipe, site: Path) -> None:
    """Delete folders from site-packages, copy stand-ins there and apply patches, as the recipe says."""
    for folder in recipe.contents.remove:
        if not (site / folder.path).is_dir():
            raise CkptcheckError(f"{recipe.name}: {folder.path} cannot be removed: no such folder is installed")
        shutil.rmtree(site / folder.path)
    for stand_in in recipe.contents.stand_in:
        source = recipe.folder / stand_in.folder
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in recipe.contents.patch:
        target = site / patch.file
        if not target.is_file():
            raise CkptcheckError(
                f"{recipe.name}: the patch of {patch.file} has nothing to patch: no such file is installed"
            )
        target.write_bytes((recipe.folder / patch.prepend).read_bytes() + target.read_bytes())


def _import_engine(environment: Environment) -> None:
    """Import the engine. Raises CkptcheckError with the last line of the error."""
    recipe = environment.recipe
    process = run_python(
        ["-c", f"import {recipe.contents.module}"],
        environment.python,
        cwd=environment.folder,
        env=recipe.variables,
    )
    output = process.stdout + process.stderr
    with environment.log.open("ab") as log:
        log.write(f"\n$ import {recipe.contents.module}\n".encode() + output)
    if process.returncode:
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        raise CkptcheckError(
            f"{recipe.name} was built, but {recipe.contents.module} cannot be imported: {lines[-1] if lines else 'it died'}",
            f"the log is {environment.log}",
        )


def _count_bytes(folder: Path) -> int:
    """Count the bytes on disk."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(directory, name)).st_size
    return total
