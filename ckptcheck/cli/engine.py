"""``ckptcheck engine``: builds, lists and removes the isolated Python environments that engines and trainers run in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ckptcheck.cli.command_groups import CommandGroup

engine = typer.Typer(
    cls=CommandGroup,
    help="Build, list and remove the isolated Python environments that vLLM, SGLang, Megatron and RL frameworks run in.",
    no_args_is_help=True,
)

NAMES = typer.Argument(
    metavar="NAME...",
    help="vllm-cpu, sglang-cpu, megatron, trl-cpu (ckptcheck engine list names all), or a folder with a recipe of your own.",
)

STUB_KINDS = ("stand-in", "patch")
"""The differences from upstream's environment that the text form lists; the JSON form lists all."""


ListFormat = Literal["text", "json"]
"""Formats of the list of environments."""


@engine.command()
def install(
    names: Annotated[list[str], NAMES],
    python: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The Python to build on.", show_default="one the recipe was tried with"),
    ] = None,
    index_url: Annotated[str | None, typer.Option(metavar="URL", help="Package index, like pip's --index-url.")] = None,
    torch_index: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Package index of torch; the default finds the build without CUDA."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build again what is ready.")] = False,
) -> None:
    """Build environments that are not ready. Each takes some minutes and one to three GB."""
    from ckptcheck.cli.output import log, progress_bar
    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.install import InstallOptions, install
    from ckptcheck.text.formatting import format_bytes

    for recipe in [recipes.find_recipe(name) for name in names]:
        with progress_bar(recipe.name, bytewise=False) as progress:
            build_info = install(
                recipe, InstallOptions(python, index_url, torch_index, force, log, progress)
            ).build_info
        assert build_info is not None
        versions = ", ".join(f"{name} {version}" for name, version in build_info.versions.items())
        log(f"{recipe.name}: {versions}; {format_bytes(build_info.size)}")


@engine.command("list")
def list_(format: Annotated[ListFormat, typer.Option(help="Format of the list.")] = "text") -> None:
    """List the environments: their state, and what is stubbed in each and why."""
    import json

    import msgspec

    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.store import find_environment
    from ckptcheck.text.formatting import format_bytes

    environments = [find_environment(recipe) for recipe in recipes.builtin_recipes()]
    if format == "json":
        rows = [
            {
                "name": environment.recipe.name,
                "engine": environment.recipe.engine,
                "state": environment.state,
                "path": str(environment.folder),
                "versions": environment.build_info.versions if environment.build_info else {},
                "python": environment.build_info.python if environment.build_info else None,
                "size": environment.build_info.size if environment.build_info else None,
                "differences": msgspec.to_builtins(environment.recipe.differences),
            }
            for environment in environments
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for environment in environments:
        recipe, build_info = environment.recipe, environment.build_info
        disk_size = (
            f"   {format_bytes(build_info.size)}" if build_info and environment.state in ("ready", "stale") else ""
        )
        sys.stdout.write(f"{recipe.name:<12} {environment.state}{disk_size}\n  {recipe.contents.title}\n")
        if build_info and environment.state != "missing":
            versions = {"python": build_info.python, **build_info.versions}
            sys.stdout.write(f"  {', '.join(f'{name} {version}' for name, version in versions.items())}\n")
        for difference in recipe.differences:
            if difference.kind in STUB_KINDS:
                sys.stdout.write(f"  {difference.kind}: {difference.of} ({difference.why})\n")
        sys.stdout.write(
            f"  {environment.folder}\n"
            if environment.state == "ready"
            else f"  ckptcheck engine install {recipe.name}\n"
        )


@engine.command()
def remove(names: Annotated[list[str], NAMES]) -> None:
    """Remove environments from the disk."""
    from ckptcheck.cli.output import log
    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.store import find_environment, lock_environment, remove_environment

    for environment in [find_environment(recipes.find_recipe(name)) for name in names]:
        with lock_environment(environment, log):
            existed = environment.state != "missing"
            remove_environment(environment)
            environment.log.unlink(missing_ok=True)
        log(f"{environment.recipe.name} {'is removed' if existed else 'was not there'}")
