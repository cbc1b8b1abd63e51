"""Where environments are kept, and in which state each is."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ckptcheck.environments.recipe import Recipe
from ckptcheck.errors import CkptcheckError

State = Literal["ready", "missing", "stale", "broken"]
READY = "ready.json"
"""Written last. Where it is missing, whoever built the environment was interrupted."""


class Built(msgspec.Struct, frozen=True):
    """What ``ready.json`` says. digest: of the recipe it was built from; versions: package → version; size: in bytes."""

    digest: str
    python: str
    versions: dict[str, str]
    size: int


class Environment(msgspec.Struct, frozen=True):
    """An environment on disk, or the place where it would be."""

    recipe: Recipe
    folder: Path
    built: Built | None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """What pip said when it was last built."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def state(self) -> State:
        """ready; missing; stale: built from another recipe; broken: half built, or its Python is gone."""
        if not self.folder.exists():
            return "missing"
        if self.built is None or not self.python.exists():  # a link to a Python that was removed does not exist
            return "broken"
        return "ready" if self.built.digest == self.recipe.digest() else "stale"


def engines_folder() -> Path:
    """Return where environments are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache.absolute() / "ckptcheck" / "engines"


def look(recipe: Recipe) -> Environment:
    """Return the environment of a recipe as it is on disk."""
    folder = engines_folder() / recipe.name
    built = None
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        built = msgspec.json.decode((folder / READY).read_bytes(), type=Built)
    return Environment(recipe, folder, built)


def erase(environment: Environment) -> None:
    """Remove an environment; one that is half removed is broken, not ready. Raises CkptcheckError when that fails."""
    try:
        (environment.folder / READY).unlink(missing_ok=True)
        if environment.folder.is_symlink():
            environment.folder.unlink()
        elif environment.folder.exists():
            shutil.rmtree(environment.folder)
    except OSError as error:
        raise CkptcheckError(f"cannot remove {environment.folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def locked(environment: Environment, say: Callable[[str], None] = lambda _: None) -> Iterator[bool]:
    """Hold the environment against other installers. Yields whether one of them had to be waited for.

    The lock is the system's: it is gone with the process that held it, however that ended. Raises CkptcheckError where
    the folder cannot be written to.
    """
    if sys.platform == "win32":
        raise CkptcheckError("engines run on Linux and macOS only")
    import fcntl

    path = environment.folder.with_name(f"{environment.folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise CkptcheckError(f"cannot write to {path.parent}: {error.strerror or error}") from error
    waited = False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            say(f"{environment.recipe.name}: another process is at it; waiting for that")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield waited
