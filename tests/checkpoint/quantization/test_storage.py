"""Modules that are grouped kind by kind are those that are grouped tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.quantization.storage import ModuleStorage, TensorKind, group_by_storage
from ckptcheck.checkpoint.tensor import Tensor
from tests.factories.checkpoint_cases import CHECKPOINTS


def make_comparable(storages: Mapping[ModuleStorage, list[str]]) -> dict[frozenset[object], list[str]]:
    return {frozenset(storage.parts.values()): sorted(modules) for storage, modules in storages.items()}


def find_kinds(tensors: Mapping[str, Tensor]) -> dict[str, TensorKind]:
    return {
        template: TensorKind(names, {(tensors[name].dtype, tensors[name].shape) for name in names})
        for template, names in parse_layout(tensors).names_by_template.items()
    }


def make_tensors(forms: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    return {name: Tensor(dtype, shape, (0, 0)) for name, (dtype, shape) in forms.items()}


FP8 = {
    f"model.layers.{layer}.mlp.experts.{expert}.up_proj.{leaf}": form
    for layer in range(2)
    for expert in range(12)
    for leaf, form in (("weight", ("F8_E4M3", (8, 4))), ("weight_scale_inv", ("F32", (1, 1))))
}
LAST = "model.layers.1.mlp.experts.11.up_proj"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (f"{LAST}.weight", ("F8_E4M3", (8, 4))),  # nothing changes: all modules are stored alike
        (f"{LAST}.weight", ("BF16", (8, 4))),  # one has another dtype
        (f"{LAST}.weight_scale_inv", ("F32", (2, 1))),  # one has another shape
        (f"{LAST}.weight_scale_inv", None),  # one lacks its scale
        ("model.layers.0.mlp.experts.3.up_proj.weight", None),  # one has a scale alone
        ("weight", ("F32", (4,))),  # a name without a module
        (f"{LAST}.weight.absmax", ("F32", (4,))),  # a part whose name leads to the module of another kind
    ],
)
def test_kinds_are_grouped_as_single_tensors_are(name: str, form: tuple[str, tuple[int, ...]] | None) -> None:
    require_same_groups({**FP8, name: form})


def test_as_many_weights_as_scales_may_be_of_other_modules() -> None:
    require_same_groups({**FP8, "model.layers.0.mlp.experts.3.up_proj.weight": None, f"{LAST}.weight_scale_inv": None})


def require_same_groups(forms: Mapping[str, tuple[str, tuple[int, ...]] | None]) -> None:
    tensors = make_tensors({name: form for name, form in forms.items() if form is not None})
    expected = make_comparable(group_by_storage(tensors))
    assert make_comparable(group_by_storage(tensors, find_kinds(tensors))) == expected
    assert sum(map(len, expected.values())) >= 24


@pytest.mark.parametrize("folder", sorted(CHECKPOINTS.iterdir()), ids=lambda folder: folder.name)
def test_checkpoints_are_grouped_as_single_tensors_are(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    if checkpoint.kind != "checkpoint" or not checkpoint.tensors:
        pytest.skip("this is no checkpoint with tensors of its own")
    tensors = checkpoint.tensors
    assert make_comparable(group_by_storage(tensors, find_kinds(tensors))) == make_comparable(group_by_storage(tensors))
