"""Tensor layouts and the compare pass against numpy: slices, joins, splits and transposes equal those of the same array."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcheck.checkpoint.source import Folder
from ckptcheck.compare.bridge import splitters
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import FileChunk, LayoutError, TensorLayout, concatenate
from ckptcheck.compare.matching import compare_pass as walking
from ckptcheck.compare.matching.compare_pass import compare_pairs
from ckptcheck.compare.matching.equality import CompareSpec
from ckptcheck.compare.matching.tensor_files import TensorFiles
from ckptcheck.runners.runner import Local
from ckptcheck.values.tensor_part import packed_strides

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


def stored(array: np.ndarray, folder: Path, name: str, cuts: list[int]) -> TensorLayout:
    """Write an array as several chunks along its first axis, in reverse order, and describe it."""
    edges = sorted({0, array.shape[0], *(cut % (array.shape[0] + 1) for cut in cuts)})
    chunks, raw = [], b"\0" * 3
    for begin, end in reversed(list(itertools.pairwise(edges))):
        part = np.ascontiguousarray(array[begin:end])
        origin = (begin, *(0 for _ in array.shape[1:]))
        chunks.append(FileChunk(origin, part.shape, name, len(raw), packed_strides(part.shape, array.itemsize)))
        raw += part.tobytes()
    (folder / name).write_bytes(raw)
    return TensorLayout("F32" if array.itemsize == 4 else "BF16", array.itemsize, array.shape, tuple(chunks))


def whole(area: TensorLayout, folder: Path) -> np.ndarray:
    with TensorFiles(Folder(folder, "x")) as files:
        return files.read_tensor(area)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_operations_are_numpys(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("area")
    array = np.random.default_rng(0).integers(0, 2**32, data.draw(SHAPES), np.uint32)
    area = stored(array, folder, "a", data.draw(st.lists(st.integers(0, 9), max_size=3)))
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["cut", "unstack", "transpose", "join"]))
        if kind == "cut" and array.shape:
            axis = data.draw(st.integers(0, array.ndim - 1))
            begin = data.draw(st.integers(0, array.shape[axis]))
            end = data.draw(st.integers(begin, array.shape[axis]))
            step = data.draw(st.integers(1, 3))
            area = area.cut(axis, begin, end, step)
            array = array[(slice(None),) * axis + (slice(begin, end, step),)]
        elif kind == "unstack" and array.ndim > 1 and array.shape[0]:
            number = data.draw(st.integers(0, array.shape[0] - 1))
            area, array = area.unstack()[number], array[number]
        elif kind == "transpose" and array.ndim == 2:
            area, array = area.transpose(), array.T
        elif kind == "join" and array.shape:
            area, array = concatenate([area, area]), np.concatenate([array, array])
    assert area.shape == array.shape
    np.testing.assert_array_equal(whole(area, folder), array)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_walk_counts_what_numpy_counts(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("walk")
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    first = random.standard_normal(data.draw(SHAPES), np.float32)
    second = first.copy()
    changed = random.random(first.shape) < data.draw(st.sampled_from([0.0, 0.02, 0.5]))
    second[changed] += 1
    areas = (
        stored(first.view(np.uint32), folder, "a", data.draw(st.lists(st.integers(0, 9), max_size=2))),
        stored(second.view(np.uint32), folder, "b", data.draw(st.lists(st.integers(0, 9), max_size=2))),
    )
    if first.ndim == 2 and data.draw(st.booleans()):  # the second side stored transposed
        areas = (areas[0], stored(np.ascontiguousarray(second.T).view(np.uint32), folder, "c", [1]).transpose())
    source = Folder(folder, "x")
    with TensorFiles(source) as ours, TensorFiles(source) as theirs:
        outcome = compare_pairs([(*areas, CompareSpec("F32", "F32", "F32"))], (ours, theirs), runner=Local(2))
    seen = outcome.results[0]
    assert (seen.elements, seen.different) == (first.size, int(changed.sum()))
    assert not outcome.unread
    if changed.any():
        assert seen.first == tuple(int(index) for index in np.argwhere(changed)[0])
        assert seen.largest == pytest.approx(np.abs(first - second)[changed].max())


def test_large_tensors_are_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "TASK_BYTES", 64)
    monkeypatch.setattr(walking, "TASK_ELEMENTS", 16)
    monkeypatch.setattr(walking, "STEP_BYTES", 40)
    array = np.arange(35 * 9, dtype=np.uint32).reshape(35, 9)
    other = array.copy()
    other[34, 8] = 0
    ours = stored(array, tmp_path, "a", [])
    for area in (
        stored(other, tmp_path, "b", []),
        stored(np.ascontiguousarray(other.T), tmp_path, "c", []).transpose(),
    ):
        source = Folder(tmp_path, "x")
        with TensorFiles(source) as one, TensorFiles(source) as two:
            seen = compare_pairs([(ours, area, CompareSpec("F32", "F32", "F32"))], (one, two), runner=Local(2)).results[
                0
            ]
        assert (seen.elements, seen.different, seen.first) == (35 * 9, 1, (34, 8))


def test_a_narrow_part_of_wide_rows_is_read_line_by_line(tmp_path: Path) -> None:
    array = np.arange(50 * 64, dtype=np.uint32).reshape(50, 64)
    area = stored(array, tmp_path, "a", []).cut(1, 10, 12)
    np.testing.assert_array_equal(whole(area, tmp_path), array[:, 10:12])


def test_interleaved_attention_is_taken_apart_by_group() -> None:
    geometry = ModelDimensions(heads=4, kv_heads=2, head_dim=2)
    rows = [f"q{n}" for n in (0, 1)] + ["k0", "v0"] + [f"q{n}" for n in (2, 3)] + ["k1", "v1"]
    area = TensorLayout.contiguous("F32", 4, (16, 3), "a", 0)
    parts = splitters.split_qkv_interleaved(area, geometry)
    first_rows = {(chunk.offset // 12) // 2: rows[(chunk.offset // 12) // 2] for part in parts for chunk in part.chunks}
    assert [part.shape for part in parts] == [(8, 3), (4, 3), (4, 3)]
    assert [[first_rows[(chunk.offset // 12) // 2] for chunk in part.chunks] for part in parts] == [
        ["q0", "q2"], ["k0", "k1"], ["v0", "v1"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "cut",
    [
        splitters.split_qkv_interleaved,
        splitters.split_qkv_stacked,
        splitters.split_glu,
        splitters.split_glu_alternating,
        splitters.split_transposed,
    ],
)
def test_a_tensor_of_another_shape_is_said_to_be_one(cut: splitters.SplitFunction) -> None:
    for shape in ((), (3,), (3, 5, 2)):
        with pytest.raises(LayoutError):
            cut(TensorLayout.contiguous("F32", 4, shape, "a", 0), ModelDimensions(heads=4, kv_heads=2, head_dim=2))


def test_every_second_row_across_chunks(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.uint32).reshape(10, 2)
    for begin in (0, 1, 2):
        area = stored(array, tmp_path, "a", [3, 4, 7]).cut(0, begin, 10, 2)
        np.testing.assert_array_equal(whole(area, tmp_path), array[begin:10:2])


def test_fused_experts_of_gpt_oss_are_taken_apart_as_its_forward_does(tmp_path: Path) -> None:
    from ckptcheck.compare.bridge.families import TABLES
    from ckptcheck.compare.bridge.family_table import split_tensor

    fused = np.arange(2 * 3 * 8, dtype=np.uint32).reshape(2, 3, 8)  # experts, inputs, gate and up in turn
    down = np.arange(2 * 4 * 3, dtype=np.uint32).reshape(2, 4, 3)
    table = TABLES["gpt_oss"].variants
    found = (
        split_tensor(
            table, "model.layers.5.mlp.experts.gate_up_proj", stored(fused, tmp_path, "a", [1]), ModelDimensions()
        )
        or {}
    )
    found |= (
        split_tensor(table, "model.layers.5.mlp.experts.down_proj", stored(down, tmp_path, "b", []), ModelDimensions())
        or {}
    )
    for expert in range(2):
        at = f"model.layers.5.mlp.experts.{expert}"
        np.testing.assert_array_equal(whole(found[f"{at}.gate_proj.weight"], tmp_path), fused[expert, :, ::2].T)
        np.testing.assert_array_equal(whole(found[f"{at}.up_proj.weight"], tmp_path), fused[expert, :, 1::2].T)
        np.testing.assert_array_equal(whole(found[f"{at}.down_proj.weight"], tmp_path), down[expert].T)
