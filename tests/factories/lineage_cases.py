"""The cases of the rules on lineage: manifests of a chain, and what became of them since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.compare.identity import TensorIdentity, compute_root
from ckptcheck.compare.lineage import Lineage, state_origin, trace_lineage
from ckptcheck.compare.manifest import SCHEMA, Manifest, ManifestEntry
from tests.factories.case_table import CaseTable, StrictTable


class Step(StrictTable, kw_only=True):
    """A set of weights, and what it was made from."""

    name: str
    """The file of its manifest."""
    made_from: list[str] = []
    """Names of steps before it."""
    tensors: dict[str, str] = msgspec.field(default_factory=lambda: {"a": "1", "b": "2"})
    """Tensor → what stands for its values."""
    later: dict[str, str] = {}
    """Tensors as the manifest that is given has them, where they changed since; "" for one that is gone."""
    names: str = "Hugging Face"
    later_names: str = ""
    state: dict[str, Any] = {}
    """Members of the statement of origin to overwrite."""
    copied: str = ""
    """The step whose statement of origin it has in place of its own."""
    given: bool = True


class LineageCase(CaseTable, kw_only=True):
    """A case of a rule on lineage; the last step is what is verified."""

    steps: list[Step]


def build_manifest(name: str, tensors: Mapping[str, str], names: str) -> Manifest:
    """Build a manifest of made-up digests; without a name for whose names they are, it has no identity."""
    weights = {each: TensorIdentity("F32", (2,), value * 32) for each, value in tensors.items() if value}
    entries = {each: ManifestEntry("F32", (2,), value.digest, "model.safetensors") for each, value in weights.items()}
    if not names:
        return Manifest(SCHEMA, name.removesuffix(".json"), entries)
    return Manifest(SCHEMA, name.removesuffix(".json"), entries, compute_root(weights), names, weights)


def build_lineage(table: Mapping[str, Any]) -> Lineage:
    """Build the manifests of a case, and follow the last one."""
    case = msgspec.convert(table, LineageCase)
    stated: dict[str, Manifest] = {}
    given: dict[str, Manifest] = {}
    for step in case.steps:
        manifest = build_manifest(step.name, step.tensors, step.names)
        if step.made_from:
            manifest.made_from = state_origin(manifest, {name: stated[name] for name in step.made_from}) | step.state
        if step.copied:
            manifest.made_from = stated[step.copied].made_from
        stated[step.name] = manifest
        later = build_manifest(step.name, step.tensors | step.later, step.later_names or step.names)
        later.made_from = manifest.made_from
        if step.given:
            given[step.name] = later
    last = case.steps[-1].name
    return trace_lineage(last, given.pop(last), given)
