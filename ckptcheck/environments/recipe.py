"""A recipe: what an environment is made of, and why. One folder each, read from ``recipe.toml`` and ``requirements.txt``.

Every package is named, with its version, and installed without its dependencies: an environment built next year is the
one that was tried. What upstream asks for and the recipe leaves out is said there, with the reason.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError

FOLDER = Path(__file__).parent / "recipes"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+")
"""``name==version``, with nothing else: no marker, no option, no URL."""


class Pin(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A package whose version was chosen; the versions in requirements.txt only follow from these."""

    package: str
    why: str


class LeftOut(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Packages that upstream asks for and that are not installed."""

    packages: tuple[str, ...]
    why: str


class StandIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A stand-in for a package: a folder beside the recipe, copied into site-packages."""

    folder: str
    why: str


class Patch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Lines put in front of an installed file. file: relative to site-packages; prepend: a file beside the recipe."""

    file: str
    prepend: str
    why: str


class Variable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An environment variable that the engine is started with."""

    name: str
    value: str
    why: str


class Contents(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What ``recipe.toml`` says. module: what is imported to see that the environment works. pythons: tried with these."""

    module: str
    title: str
    pythons: tuple[str, ...]
    pin: tuple[Pin, ...]
    leave_out: tuple[LeftOut, ...] = msgspec.field(default=(), name="leave-out")
    stand_in: tuple[StandIn, ...] = msgspec.field(default=(), name="stand-in")
    patch: tuple[Patch, ...] = ()
    variable: tuple[Variable, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """One thing in which an environment is not what upstream installs. kind: pin, left out, stand-in, patch or variable.

    of: the package (a pin with its version), the packages, the file below site-packages, or ``NAME=value``.
    """

    kind: str
    of: str
    why: str


class Recipe(msgspec.Struct, frozen=True):
    """A recipe as read. requirements: the further packages, ``name==version`` each."""

    name: str
    folder: Path
    contents: Contents
    requirements: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """Every package that is installed, torch included, as ``name==version``."""
        return (*(pin.package for pin in self.contents.pin), *self.requirements)

    @property
    def engine(self) -> str:
        """The engine or trainer that it holds: vllm, sglang, megatron."""
        return self.contents.module.partition(".")[0]

    @property
    def torch(self) -> str | None:
        """The pin of torch, which comes from an index of its own; None for a recipe without it."""
        return next((package for package in self.packages if package.partition("==")[0] == "torch"), None)

    @property
    def shown(self) -> tuple[str, ...]:
        """The packages whose versions tell one build from another: those that were chosen."""
        return tuple(pin.package.partition("==")[0] for pin in self.contents.pin)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables the engine is started with."""
        return {variable.name: variable.value for variable in self.contents.variable}

    @property
    def differences(self) -> tuple[Difference, ...]:
        """All in which the environment is not what upstream installs, with the reasons."""
        told = self.contents
        return (
            *(Difference("pin", pin.package, pin.why) for pin in told.pin),
            *(Difference("left out", ", ".join(out.packages), out.why) for out in told.leave_out),
            *(Difference("stand-in", Path(each.folder).name, each.why) for each in told.stand_in),
            *(Difference("patch", patch.file, patch.why) for patch in told.patch),
            *(Difference("variable", f"{each.name}={each.value}", each.why) for each in told.variable),
        )

    def digest(self) -> str:
        """Return what changes when the environment would come out different; a reworded reason changes nothing."""
        known = hashlib.sha256()
        for package in sorted(self.packages):
            known.update(f"package {package}\n".encode())
        for stand_in in self.contents.stand_in:
            for path in sorted(path for path in (self.folder / stand_in.folder).rglob("*.py")):
                known.update(f"stand-in {path.relative_to(self.folder).as_posix()}\n".encode() + path.read_bytes())
        for patch in self.contents.patch:
            known.update(f"patch {patch.file}\n".encode() + (self.folder / patch.prepend).read_bytes())
        return known.hexdigest()[:16]


def builtin() -> list[Recipe]:
    """Return the recipes that come with ckptcheck, by name."""
    return [load(folder) for folder in sorted(FOLDER.iterdir()) if (folder / "recipe.toml").is_file()]


def find(name: str) -> Recipe:
    """Return the recipe of that name, or in that folder. Raises CkptcheckError when there is none, or it is malformed."""
    if (Path(name) / "recipe.toml").is_file():
        return load(Path(name).absolute())
    known = {recipe.name: recipe for recipe in builtin()}
    if name not in known:
        raise CkptcheckError(
            f"there is no recipe {name}", f"there are {', '.join(known)}, or name a folder that holds a recipe.toml"
        )
    return known[name]


def load(folder: Path) -> Recipe:
    """Read a recipe; it is named after its folder. Raises CkptcheckError for one that cannot be followed."""
    file = folder / "recipe.toml"
    try:
        contents = msgspec.toml.decode(file.read_bytes(), type=Contents)
        listed = folder / "requirements.txt"
        lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CkptcheckError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    requirements = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    recipe = Recipe(folder.name, folder, contents, requirements)
    if (wrong := _wrong(recipe)) is not None:
        raise CkptcheckError(f"{file}: {wrong}")
    return recipe


def _wrong(recipe: Recipe) -> str | None:
    """Say why a recipe cannot be followed."""
    if not NAME.fullmatch(recipe.name):
        return f"its folder is called {recipe.name}; a recipe's name is lower case letters, digits and dashes"
    for package in recipe.packages:
        if not PINNED.fullmatch(package):
            return f"{package} is not written as name==version"
    names = [package.partition("==")[0].lower() for package in recipe.packages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"{twice[0]} is named twice"
    for path in (
        *(stand_in.folder for stand_in in recipe.contents.stand_in),
        *(patch.prepend for patch in recipe.contents.patch),
    ):
        if not (recipe.folder / path).exists():
            return f"{path} is not there"
    for patch in recipe.contents.patch:
        if Path(patch.file).is_absolute() or ".." in Path(patch.file).parts:
            return f"{patch.file} does not lie in site-packages"
    return None
