"""Builds an environment from its recipe: Python, torch, the packages, stand-ins and patches, and then a real import."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from ckptcheck.environments.clean import clean_environment
from ckptcheck.environments.home import READY, Built, Environment, erase, locked, look
from ckptcheck.environments.pip import Pip, Progress
from ckptcheck.environments.probe import probe
from ckptcheck.environments.recipe import Recipe
from ckptcheck.errors import CkptcheckError
from ckptcheck.writing import replace_file

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch without CUDA is published (https://pytorch.org/get-started/locally)."""


@dataclass(frozen=True)
class Options:
    """How to build. python: the interpreter to build on; index, torch_index: where packages and torch come from."""

    python: Path | None = None
    index: str | None = None
    torch_index: str | None = None
    force: bool = False
    say: Callable[[str], None] = lambda _: None
    progress: Progress | None = None


def install(recipe: Recipe, options: Options) -> Environment:
    """Return the environment of a recipe, built unless it is ready.

    Two installers do not collide: the second waits, and finds what the first has built. One that was interrupted leaves
    an environment that counts as broken and is built anew. Raises CkptcheckError with what failed and where the log is.
    """
    with locked(look(recipe), options.say) as waited:
        environment = look(recipe)
        if environment.state == "ready" and (waited or not options.force):
            other = options.python or options.index or options.torch_index
            anew = "; --force builds it anew, as you say how" if other else ""
            options.say(f"{recipe.name} is ready: {environment.folder}{anew}")
            return environment
        if environment.state in ("stale", "broken"):
            why = "from another recipe" if environment.state == "stale" else "only half built"
            options.say(f"{recipe.name}: what is there is {why}; it is built anew")
        erase(environment)
        try:
            return _build(environment, options)
        except BaseException:
            with contextlib.suppress(CkptcheckError):
                erase(environment)
            raise


def _build(environment: Environment, options: Options) -> Environment:
    recipe, say = environment.recipe, options.say
    base = options.python or _base(recipe)
    with environment.log.open("wb") as log:
        say(f"{recipe.name}: an environment of {base}")
        _create(environment, base, log)
        pip = Pip(environment.python, log, options.index)
        if recipe.torch:
            say(f"{recipe.name}: {recipe.torch}")
            install_torch(pip, recipe.torch, options)
        others = [package for package in recipe.packages if package != recipe.torch]
        if others:
            say(f"{recipe.name}: {len(others)} packages")
            pip.install(others, progress=options.progress)
    found = probe(environment.python, recipe.shown)
    _amend(recipe, Path(found.site))
    say(f"{recipe.name}: import {recipe.contents.module}")
    _import(environment)
    built = Built(recipe.digest(), found.python, found.versions, _size(environment.folder))
    replace_file(environment.folder / READY, msgspec.json.encode(built))
    return look(recipe)


def _base(recipe: Recipe) -> Path:
    """Find a Python that the recipe was tried with: this one, or one on the PATH."""
    wanted = recipe.contents.pythons
    if f"{sys.version_info.major}.{sys.version_info.minor}" in wanted:
        return Path(sys.executable)
    for version in wanted:
        path = shutil.which(f"python{version}")
        if path is not None:
            with contextlib.suppress(CkptcheckError):
                if probe(Path(path), ()).python.startswith(f"{version}."):
                    return Path(path)
    raise CkptcheckError(
        f"{recipe.name} was tried with Python {' and '.join(wanted)}, and there is none on the PATH",
        "install one, or name another with --python PATH",
    )


def _create(environment: Environment, base: Path, log: IO[bytes]) -> None:
    """Create the virtual environment."""
    command = [str(base), "-m", "venv", str(environment.folder)]
    log.write(f"$ {' '.join(command)}\n".encode())
    log.flush()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=clean_environment(), check=False
        )
    except OSError as error:
        raise CkptcheckError(f"cannot run {base}: {error.strerror or error}") from error
    said = done.stdout + done.stderr
    log.write(said)
    if done.returncode:
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        raise CkptcheckError(
            f"{base} cannot create a virtual environment: {lines[-1] if lines else f'exit code {done.returncode}'}",
            f"on Debian and Ubuntu the package python3-venv is needed; the log is {environment.log}",
        )


def install_torch(pip: Pip, torch: str, options: Options) -> None:
    """Install the CPU build of torch, and never fetch gigabytes of CUDA that nothing here uses.

    On Linux PyPI holds the CUDA build. The CPU build has a version of its own (2.13.0+cpu): it is asked for as pip is
    configured, and then at PyTorch's own index. An index that the user named is taken at its word.
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


def _amend(recipe: Recipe, site: Path) -> None:
    """Put stand-ins and patches in place."""
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


def _import(environment: Environment) -> None:
    """Import what the environment is for. Raises CkptcheckError with the last line of what went wrong."""
    recipe = environment.recipe
    done = subprocess.run(
        [str(environment.python), "-c", f"import {recipe.contents.module}"],
        cwd=environment.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=clean_environment() | recipe.variables,
        check=False,
    )
    said = done.stdout + done.stderr
    with environment.log.open("ab") as log:
        log.write(f"\n$ import {recipe.contents.module}\n".encode() + said)
    if done.returncode:
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        raise CkptcheckError(
            f"{recipe.name} was built, but {recipe.contents.module} cannot be imported: {lines[-1] if lines else 'it died'}",
            f"the log is {environment.log}",
        )


def _size(folder: Path) -> int:
    """Count the bytes on disk."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(directory, name)).st_size
    return total
