"""Holds the folders to docs/architecture.md, and the modules to importing each other in no circle."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.paths import ROOT

EXPLAINED = {
    "evidence offers what another file works out, and imports it when it is first asked; that file names the evidence's type": [
        ("checkpoint.megatron.inspection", "checkpoint.megatron.megatron"),
        ("runs.history.history", "runs.history.tables"),
    ],
    "the class of an engine takes and returns values, beside which its name stands for type hints": [
        tuple(f"live.runtime.engines.{name}" for name in ("base", "codec", "loading", "remote")),
    ],
}
"""Why modules may import each other in a circle → the circles. Any other circle fails."""


def test_the_tree_of_the_page_is_the_tree() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = page.partition("```\nckptcheck/\n")[2].partition("\nrules/")[0]
    shown = set(re.findall(r"^  ([\w./]+)", tree, re.MULTILINE))
    there = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "ckptcheck").iterdir()
        if path.name not in ("__pycache__", "py.typed")
    }
    assert shown == there


def test_the_tree_of_the_page_stands_in_the_order_of_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ][0]
    layers = [layer.removeprefix("ckptcheck.") for layer in contract["layers"]]
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = page.partition("```\nckptcheck/\n")[2].partition("\nrules/")[0]
    drawn = [re.sub(r"\.py$|/$", "", name) for name in re.findall(r"^  ([\w./]+)", tree, re.MULTILINE)]
    assert [name for name in drawn if name != "__init__"] == layers


def test_every_path_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:[\w-]+/)+[\w.-]*)`", page):
        assert any((ROOT / top / path).exists() for top in ("", "ckptcheck")), path


def test_no_modules_import_each_other_in_a_circle() -> None:
    grimp = pytest.importorskip("grimp", reason="needs grimp (make check installs it)")
    graph = grimp.build_graph("ckptcheck", exclude_type_checking_imports=False, cache_dir=None)
    # The public face names the API for type checkers, and modules ask it for the version: it is in every circle, or in none.
    imports = {
        module: graph.find_modules_directly_imported_by(module) - {"ckptcheck"}
        for module in graph.modules - {"ckptcheck"}
    }
    assert len(imports) > 400
    explained = {
        frozenset(f"ckptcheck.{name}" for name in circle) for circles in EXPLAINED.values() for circle in circles
    }
    assert set(_find_circles(imports)) == explained


def _find_circles(imports: dict[str, set[str]]) -> list[frozenset[str]]:
    """Return the groups of modules that reach each other, from the modules that each one imports."""

    def reach(start: str) -> set[str]:
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            for module in imports[waiting.pop()] - reached:
                reached.add(module)
                waiting.append(module)
        return reached

    reached = {module: reach(module) for module in imports}
    return [
        circle
        for circle in {
            frozenset({module, *(other for other in reached[module] if module in reached[other])}) for module in imports
        }
        if len(circle) > 1
    ]
