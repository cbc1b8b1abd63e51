"""``ckptcheck engine``: builds, lists and removes the isolated Python environments that engines and trainers run in."""

import sys
from typing import Annotated

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, Option, StrPath, TextOrJson, Words
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

Names = Annotated[
    Words,
    Argument(
        "vllm-cpu, sglang-cpu, megatron, trl-cpu (ckptcheck engine list names all), or a folder with a recipe of your own.",
        metavar="NAME...",
    ),
]
STUB_KINDS = ("stand-in", "patch")
"""The differences from upstream's environment that the text form lists; the JSON form lists all."""


@verb()
def install(
    names: Names,
    *,
    python: Annotated[
        StrPath | None, Option("The Python to build on.", metavar="PATH", shown="one the recipe was tried with")
    ] = None,
    index_url: Annotated[str | None, Option("Package index, like pip's --index-url.", metavar="URL")] = None,
    torch_index: Annotated[
        str | None,
        Option("Package index of torch; the default finds the build without CUDA.", metavar="URL"),
    ] = None,
    force: Annotated[bool, Option("Rebuild environments that are ready.")] = False,
    observer: Observer = SILENT,
) -> None:
    """Build environments that are not ready. Each takes some minutes and one to three GB."""
    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.install import InstallOptions, install
    from ckptcheck.text.formatting import format_bytes

    for recipe in [recipes.find_recipe(name) for name in several(names)]:
        with observer.progress(recipe.name, bytewise=False) as progress:
            build_info = install(
                recipe, InstallOptions(to_path(python), index_url, torch_index, force, observer.log, progress)
            ).build_info
        assert build_info is not None
        versions = ", ".join(f"{name} {version}" for name, version in build_info.versions.items())
        observer.log(f"{recipe.name}: {versions}; {format_bytes(build_info.size)}")


@verb()
def list_(format: Annotated[TextOrJson, Option("Format of the list.")] = "text") -> None:
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


@verb()
def remove(names: Names, *, observer: Observer = SILENT) -> None:
    """Remove environments from the disk."""
    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.store import find_environment, lock_environment, remove_environment

    for environment in [find_environment(recipes.find_recipe(name)) for name in several(names)]:
        with lock_environment(environment, observer.log):
            existed = environment.state != "missing"
            remove_environment(environment)
            environment.log.unlink(missing_ok=True)
        observer.log(f"{environment.recipe.name} {'is removed' if existed else 'was not there'}")
