"""Holds the folders to docs/architecture.md, and the modules to importing each other in no circle."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.paths import ROOT

EXPLAINED = {
    "evidence offers what another file works out, and imports it when it is first asked; that file names the evidence's type": [
        ("checkpoint.checkpoint", "checkpoint.implicit_added_tokens", "checkpoint.tokenizer", "checkpoint.value_reader",
         "checkpoint.vocabulary"),
        ("checkpoint.megatron.inspection", "checkpoint.megatron.megatron"),
        ("compare.matching.comparison", "reporters.pictures.comparison", "compare.matching.difference_causes",
         "compare.matching.value_heads", "compare.matching.quantized.swapped_weights"),
        ("compare.verification", "reporters.pictures.verification"),
        ("compare.matching.megatron_side", "compare.matching.side"),
        ("runs.history.history", "runs.history.tables", "reporters.pictures.history_curves", "reporters.pictures.history_raster"),
        ("live.pictures.tensor_states", "live.pictures.trial_measurements", "live.refit.proof", "live.refit.report_sections", "live.refit.trace",
         "live.refit.trace_queries", "live.refit.weight_names"),
        ("live.conformance.trace", "live.pictures.fault_answers"),
        ("live.refit.lora.trace", "live.pictures.adapter_effects"),
        ("live.pictures.server_tensors", "live.refit.running_servers.comparability", "live.refit.running_servers.trace"),
        ("linter.report", "reporters.html.overview", "reporters.html.page"),
        ("live.experiments.attribution.trace", "live.pictures.search_ladder"),
        ("live.experiments.critic", "live.pictures.critic_values"),
        ("live.localize.localization", "live.pictures.module_outputs"),
        ("live.experiments.matrix.trace", "live.pictures.matrix_cells"),
        ("reporters.pictures.run_curves", "rollouts.run_comparison", "rollouts.series"),
        ("reporters.pictures.token_gaps", "reporters.pictures.worst_tokens", "rollouts.plots", "rollouts.rollout_evidence"),
        ("live.pictures.probe_gaps", "live.experiments.probes.trace"),
        ("jobs.job", "reporters.pictures.job_settings"),
    ],
    "a function names the type that its caller passes; at run time the lower one imports nothing of the higher": [
        ("compare.diagnosis.matrix_pair", "compare.diagnosis.rearrangements"),
        ("live.runtime.engines.base", "live.runtime.engines.sampling"),
        ("values.chunk_scan", "values.pattern_max", "values.stats", "values.zero_runs"),
    ],
}  # fmt: skip
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
