"""The store of environments: their folders and states."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.recipe import Recipe

State = Literal["ready", "missing", "stale", "broken"]
READY = "ready.json"
"""Written last. If it is missing, the build was interrupted."""


class BuildInfo(msgspec.Struct, frozen=True):
    """The content of ``ready.json``."""

    digest: str
    """Digest of the recipe that was built."""
    python: str
    """Version of its Python."""
    versions: dict[str, str]
    """Package → version."""
    size: int
    """Bytes on disk."""


class Environment(msgspec.Struct, frozen=True):
    """An environment on disk, or the place for it."""

    recipe: Recipe
    folder: Path
    build_info: BuildInfo | None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """The log of the last build."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def state(self) -> State:
        """ready, missing, stale (built from another recipe) or broken (half built, or its Python or its base is gone)."""
        if not self.folder.exists():
            return "missing"
        # a link to a Python that was removed does not exist
        if self.build_info is None or not self.python.exists():
            return "broken"
        if self.recipe.base is not None and find_environment(self.recipe.base).state != "ready":
            return "broken"
        return "ready" if self.build_info.digest == self.recipe.digest() else "stale"


def engines_folder() -> Path:
    """Return the folder of all environments."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache.absolute() / "ckptcheck" / "engines"


def find_environment(recipe: Recipe) -> Environment:
    """Return the environment of a recipe as it is on disk."""
    folder = engines_folder() / recipe.name
    build_info = None
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        build_info = msgspec.json.decode((folder / READY).read_bytes(), type=BuildInfo)
    return Environment(recipe, folder, build_info)


def remove_environment(environment: Environment) -> None:
    """Remove an environment. One that is half removed counts as broken. Raises CkptcheckError if that fails."""
    try:
        (environment.folder / READY).unlink(missing_ok=True)
        if environment.folder.is_symlink():
            environment.folder.unlink()
        elif environment.folder.exists():
            shutil.rmtree(environment.folder)
    except OSError as error:
        raise CkptcheckError(f"cannot remove {environment.folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def lock_environment(environment: Environment, say: Callable[[str], None] = lambda _: None) -> Iterator[bool]:
    """Lock the environment against other installers. Yields whether this process had to wait for one.

    The system releases the lock when the process ends, however it ends. Raises CkptcheckError if the folder is not writable.
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
            say(f"{environment.recipe.name}: another process is building it; waiting for that")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield waited
