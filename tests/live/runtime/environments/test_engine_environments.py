"""The environments as they are really built: the engine imports, and the recipe tells the whole truth about it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from ckptcheck.live.runtime.environments import recipe
from ckptcheck.live.runtime.environments.interpreter import Interpreter
from ckptcheck.live.runtime.environments.store import Environment, find_environment
from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.fixture(scope="module", params=[known.name for known in recipe.builtin_recipes()])
def python(request: pytest.FixtureRequest) -> Interpreter:
    return needs_engine(request.param)


@pytest.fixture(scope="module")
def environment(python: Interpreter) -> Environment:
    return next(found for found in map(find_environment, recipe.builtin_recipes()) if found.python == python.python)


@pytest.fixture(scope="module")
def host(python: Interpreter) -> Iterator[WorkerClient]:
    with WorkerClient(
        python.python, "ckptcheck_worker.env_report", name=python.engine, env=python.variables
    ) as running:
        yield running


def test_the_engine_imports_in_its_own_python(
    environment: Environment, python: Interpreter, host: WorkerClient
) -> None:
    module = environment.recipe.contents.module
    seen = host.call("imported", module=module, timeout=300)
    assert seen["version"] == python.version
    assert seen["file"].startswith(str(environment.folder))
    torch = host.call("imported", module="torch", timeout=300)
    assert torch["version"].partition("+")[0] == "2.13.0"
    base = find_environment(environment.recipe.base) if environment.recipe.base else environment
    assert torch["file"].startswith(str(base.folder))
    for package in environment.recipe.packages:
        name, _, version = package.partition("==")
        installed = host.call("versions", packages=[name])[name]
        assert installed.partition("+")[0] == version, package
    assert host.call("versions", packages=["ckptcheck"]) == {"ckptcheck": None}


def test_the_recipe_names_all_that_upstream_asks_for_in_vain(environment: Environment) -> None:
    """`pip check` lists what requirements are not met: each has to be left out, or pinned otherwise, for a reason."""
    command = [str(environment.python), "-m", "pip", "check", "--disable-pip-version-check"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    contents, base = environment.recipe.contents, environment.recipe.base
    missing = set(re.findall(r"requires (\S+), which is not installed", said))
    replaced = {part.folder.rpartition("/")[2] for part in contents.stand_in}
    omitted = (*contents.leave_out, *(base.contents.leave_out if base else ()))
    out = {package for left in omitted for package in left.packages}
    assert missing == out
    assert replaced <= out | {"sgl_kernel"}  # what the package sglang-kernel installs
    other = {name.lower() for name in re.findall(r"has requirement (\w[\w-]*)", said)}
    pins = (*contents.pin, *(base.contents.pin if base else ()))
    chosen = {pin.package.partition("==")[0] for pin in pins}
    assert other <= chosen
