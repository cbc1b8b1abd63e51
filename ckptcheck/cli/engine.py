"""``ckptcheck engine``: builds, lists and removes the isolated Pythons that engines and trainers run in."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ckptcheck.cli.verbs import Verbs

engine = typer.Typer(
    cls=Verbs,
    help="Build, list and remove the isolated Pythons that vLLM, SGLang and Megatron run in.",
    no_args_is_help=True,
)

NAMES = typer.Argument(metavar="NAME...", help="vllm-cpu, sglang-cpu, megatron, or a folder with a recipe of your own.")


STUBS = ("stand-in", "patch")
"""Of what an environment differs in from upstream's own, what the text says; JSON has all."""


class Format(StrEnum):
    """How to list."""

    text = "text"
    json = "json"


@engine.command()
def install(
    names: Annotated[list[str], NAMES],
    python: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Python to build on.", show_default="one the recipe was tried with"),
    ] = None,
    index_url: Annotated[str | None, typer.Option(metavar="URL", help="Index to take packages from, as pip's.")] = None,
    torch_index: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Index to take torch from; the default finds the build without CUDA."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build anew what is ready.")] = False,
) -> None:
    """Build environments, unless they are ready. Takes some minutes and one to three GB each."""
    from ckptcheck.cli.output import progress_bar, talk
    from ckptcheck.environments import recipe as recipes
    from ckptcheck.environments.install import Options, install
    from ckptcheck.phrase import size

    for recipe in [recipes.find(name) for name in names]:
        with progress_bar(recipe.name, bytewise=False) as progress:
            built = install(recipe, Options(python, index_url, torch_index, force, talk, progress)).built
        assert built is not None
        talk(
            f"{recipe.name}: {', '.join(f'{name} {version}' for name, version in built.versions.items())}; {size(built.size)}"
        )


@engine.command("list")
def list_(format: Annotated[Format, typer.Option(help="Form of the list.")] = Format.text) -> None:
    """Say which environments there are, in which state, and what is stubbed in each and why."""
    import json

    import msgspec

    from ckptcheck.environments import recipe as recipes
    from ckptcheck.environments.home import look
    from ckptcheck.phrase import size

    environments = [look(recipe) for recipe in recipes.builtin()]
    if format is Format.json:
        listed = [
            {
                "name": environment.recipe.name,
                "engine": environment.recipe.engine,
                "state": environment.state,
                "path": str(environment.folder),
                "versions": environment.built.versions if environment.built else {},
                "python": environment.built.python if environment.built else None,
                "size": environment.built.size if environment.built else None,
                "differences": msgspec.to_builtins(environment.recipe.differences),
            }
            for environment in environments
        ]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
        return
    for environment in environments:
        recipe, built = environment.recipe, environment.built
        bulk = f"   {size(built.size)}" if built and environment.state in ("ready", "stale") else ""
        sys.stdout.write(f"{recipe.name:<12} {environment.state}{bulk}\n  {recipe.contents.title}\n")
        if built and environment.state != "missing":
            versions = {"python": built.python, **built.versions}
            sys.stdout.write(f"  {', '.join(f'{name} {version}' for name, version in versions.items())}\n")
        for each in recipe.differences:
            if each.kind in STUBS:
                sys.stdout.write(f"  {each.kind}: {each.of} ({each.why})\n")
        sys.stdout.write(f"  {environment.folder}\n" if environment.state == "ready" else f"  {remedy(recipe.name)}\n")


@engine.command()
def remove(names: Annotated[list[str], NAMES]) -> None:
    """Remove environments and what they take on the disk."""
    from ckptcheck.cli.output import talk
    from ckptcheck.environments import recipe as recipes
    from ckptcheck.environments.home import erase, locked, look

    for environment in [look(recipes.find(name)) for name in names]:
        with locked(environment, talk):
            there = environment.state != "missing"
            erase(environment)
            environment.log.unlink(missing_ok=True)
        talk(f"{environment.recipe.name} {'is removed' if there else 'was not there'}")


def remedy(name: str) -> str:
    """Say how to get an environment."""
    return f"ckptcheck engine install {name}"
