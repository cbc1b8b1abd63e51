"""A recipe: the parts of an environment, and why. One folder each, with ``recipe.toml`` and ``requirements.txt``.

A recipe names every package with its version, and pip installs no other dependencies, so an environment that is built next
year is the one that was tested. The recipe gives the reason for every upstream dependency that it leaves out.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError

FOLDER = Path(__file__).parent / "recipes"


class Pin(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A package whose version the recipe chooses; the versions in requirements.txt follow from these."""

    package: str
    why: str


class OmittedPackages(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Packages that upstream requires and the recipe does not install."""

    packages: tuple[str, ...]
    why: str


class StandIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A stand-in for a package: a folder beside the recipe, copied into site-packages."""

    folder: str
    why: str


class Patch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Lines to prepend to an installed file."""

    file: str
    """The installed file, relative to site-packages."""
    prepend: str
    """The file beside the recipe with the lines."""
    why: str


class RemovedFolder(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A folder to delete after the installation, because a package brings it by mistake."""

    path: str
    """The folder, relative to site-packages."""
    why: str


class Variable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An environment variable that the engine is started with."""

    name: str
    value: str
    why: str


class RecipeFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of ``recipe.toml``."""

    module: str
    """The module whose import tests the environment."""
    title: str
    pythons: tuple[str, ...]
    """The Python versions that the recipe was tested with."""
    pin: tuple[Pin, ...]
    base: str | None = None
    """The recipe of ckptcheck's whose environment is the base of this one, to install no package twice."""
    leave_out: tuple[OmittedPackages, ...] = msgspec.field(default=(), name="leave-out")
    stand_in: tuple[StandIn, ...] = msgspec.field(default=(), name="stand-in")
    patch: tuple[Patch, ...] = ()
    remove: tuple[RemovedFolder, ...] = ()
    variable: tuple[Variable, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """One difference between an environment and an upstream installation."""

    kind: str
    """pin, left out, stand-in, patch, removed or variable."""
    of: str
    """The package (of a pin with its version), the packages, the file or folder below site-packages, or ``NAME=value``."""
    why: str


class Recipe(msgspec.Struct, frozen=True):
    """A recipe that was read from its folder."""

    name: str
    folder: Path
    contents: RecipeFile
    requirements: tuple[str, ...]
    """The packages of requirements.txt, each as ``name==version``."""

    base: Recipe | None = None
    """The recipe of the base environment, whose packages this one sees too; None without a base."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Every installed package, torch included, as ``name==version``; without the base's packages."""
        return (*(pin.package for pin in self.contents.pin), *self.requirements)

    @property
    def engine(self) -> str:
        """The engine, trainer or framework that it installs (vllm, megatron, trl, …)."""
        return self.contents.module.partition(".")[0]

    @property
    def torch(self) -> str | None:
        """The pin of torch, which comes from an index of its own; None for a recipe without it."""
        return next((package for package in self.packages if package.partition("==")[0] == "torch"), None)

    @property
    def version_packages(self) -> tuple[str, ...]:
        """The packages whose versions identify a build: the pinned ones."""
        return tuple(pin.package.partition("==")[0] for pin in self.contents.pin)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the engine starts with, including the base's."""
        inherited = self.base.variables if self.base is not None else {}
        return inherited | {variable.name: variable.value for variable in self.contents.variable}

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Every difference between the environment and an upstream installation, with the reasons."""
        contents = self.contents
        return (
            *(Difference("pin", pin.package, pin.why) for pin in contents.pin),
            *(Difference("left out", ", ".join(entry.packages), entry.why) for entry in contents.leave_out),
            *(Difference("stand-in", Path(stand_in.folder).name, stand_in.why) for stand_in in contents.stand_in),
            *(Difference("patch", patch.file, patch.why) for patch in contents.patch),
            *(Difference("removed", folder.path, folder.why) for folder in contents.remove),
            *(
                Difference("variable", f"{variable.name}={variable.value}", variable.why)
                for variable in contents.variable
            ),
        )

    def digest(self) -> str:
        """Return a digest of everything that affects the environment, without the reasons."""
        digest = hashlib.sha256()
        if self.base is not None:
            digest.update(f"base {self.base.name} {self.base.digest()}\n".encode())
        for package in sorted(self.packages):
            digest.update(f"package {package}\n".encode())
        for stand_in in self.contents.stand_in:
            for path in sorted(path for path in (self.folder / stand_in.folder).rglob("*.py")):
                digest.update(f"stand-in {path.relative_to(self.folder).as_posix()}\n".encode() + path.read_bytes())
        for patch in self.contents.patch:
            digest.update(f"patch {patch.file}\n".encode() + (self.folder / patch.prepend).read_bytes())
        for folder in self.contents.remove:
            digest.update(f"removed {folder.path}\n".encode())
        return digest.hexdigest()[:16]


def builtin_recipes() -> list[Recipe]:
    """Return the recipes that come with ckptcheck, by name."""
    return [load_recipe(folder) for folder in sorted(FOLDER.iterdir()) if (folder / "recipe.toml").is_file()]


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name, or in that folder. Raises CkptcheckError if there is none, or if it is malformed."""
    if (Path(name) / "recipe.toml").is_file():
        return load_recipe(Path(name).absolute())
    recipes_by_name = {recipe.name: recipe for recipe in builtin_recipes()}
    if name not in recipes_by_name:
        near = [each for each in recipes_by_name if each.startswith(f"{name}-")]
        near = near or difflib.get_close_matches(name, recipes_by_name, 1)
        raise CkptcheckError(
            f"there is no recipe {name}",
            (
                f"ckptcheck engine install {near[0]} builds one for CPUs; --set engine-python takes a Python of yours"
                if near
                else f"choose one of {', '.join(recipes_by_name)}, or name a folder that holds a recipe.toml"
            ),
        )
    return recipes_by_name[name]


def load_recipe(folder: Path) -> Recipe:
    """Read a recipe; it is named after its folder. Raises CkptcheckError if it cannot be built."""
    file = folder / "recipe.toml"
    try:
        contents = msgspec.toml.decode(file.read_bytes(), type=RecipeFile)
        requirements_file = folder / "requirements.txt"
        lines = requirements_file.read_text(encoding="utf-8").splitlines() if requirements_file.is_file() else []
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CkptcheckError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    requirements = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    base = None
    if contents.base is not None:
        if contents.base == folder.name:
            raise CkptcheckError(f"{file}: it is built upon itself")
        if not (FOLDER / contents.base).is_dir():
            raise CkptcheckError(f"{file}: it is built upon {contents.base}, and ckptcheck has no such recipe")
        base = load_recipe(FOLDER / contents.base)
    return Recipe(folder.name, folder, contents, requirements, base)
