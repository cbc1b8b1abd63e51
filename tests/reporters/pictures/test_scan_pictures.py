"""The pictures of a scan: what is wrong stands in them, and other formats do not make them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from ckptcheck.checkpoint.layer_grid import MOST_ROWS, build_layer_grid
from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, NoPicture, Picture
from ckptcheck.linter.report import Report
from tests.factories.checkpoint_cases import CHECKPOINTS

LAYERS = 6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of six layers in one file: the same noise for every module, with a size of its own."""
    rng = np.random.default_rng(1)
    tensors = {"model.embed_tokens.weight": rng.normal(size=(64, 32)).astype(np.float32)}
    for layer in range(LAYERS):
        for module in ("self_attn.q_proj", "mlp.up_proj", "mlp.experts.0.up_proj", "mlp.experts.1.up_proj"):
            tensors[f"model.layers.{layer}.{module}.weight"] = rng.normal(size=(32, 32)).astype(np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def change(folder: Path, name: str, function: object) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    assert callable(function)
    tensors[name] = function(tensors[name]).astype(np.float32)
    save_file(tensors, file)


def scan(folder: Path, **options: object) -> Report:
    return ckptcheck.scan(folder, pictures=True, **options)  # type: ignore[arg-type]


def find(report: Report, title: str) -> Picture:
    return next(picture for picture in report.pictures if picture.title.startswith(title))


def test_other_formats_make_no_pictures(model: Path) -> None:
    assert ckptcheck.scan(model).pictures == ()
    assert ckptcheck.scan(model).to_dict() == scan(model).to_dict()


def test_a_tensor_with_nan_and_one_of_zeros_stand_out(model: Path) -> None:
    broken, empty = "model.layers.2.mlp.up_proj.weight", "model.layers.3.mlp.experts.1.up_proj.weight"
    change(model, broken, lambda tensor: np.where(np.arange(32) == 5, np.nan, tensor))
    change(model, empty, np.zeros_like)
    picture = find(scan(model), "Values by layer")
    assert isinstance(picture, HeatMap)
    assert picture.columns == ("–", "0", "1", "2", "3", "4", "5")
    single = {cell.name: cell for cell in picture.cells.values() if not cell.members}
    assert single[broken].state == "NaN or Inf"
    assert single[broken].note == "32 NaN; F32 [32, 32]"
    sound = "model.layers.1.mlp.up_proj.weight"
    assert single[sound].value == pytest.approx(np.abs(load_file(model / "model.safetensors")[sound]).max())
    assert [name for name, cell in single.items() if cell.state] == [broken]
    group = picture.cells[picture.rows.index("mlp.experts.*.up_proj"), picture.columns.index("3")]
    assert {label: cell.state for label, cell in group.members.items()} == {"0": "", "1": "zero"}


def test_a_layer_that_is_much_larger_is_named_in_the_curves(model: Path) -> None:
    assert [mark.text for mark in find_curves(model).marks] == []
    change(model, "model.layers.4.self_attn.q_proj.weight", lambda tensor: 8 * tensor)
    curves = find_curves(model)
    assert [mark.text for mark in curves.marks] == ["self_attn.q_proj of layer 4"]
    series = {one.name: one for one in curves.series}
    assert series["self_attn.q_proj"].keys[4] == "model.layers.4.self_attn.q_proj.weight"
    assert series["self_attn.q_proj"].values[4] == pytest.approx(8, rel=0.1)
    assert series["mlp.experts.*.up_proj"].values[0] == pytest.approx(1, rel=0.1)


def test_the_point_of_several_experts_is_their_median(model: Path) -> None:
    change(model, "model.layers.2.mlp.experts.1.up_proj.weight", lambda tensor: 3 * tensor)
    series = {one.name: one for one in find_curves(model).series}
    assert series["mlp.experts.*.up_proj"].values[2] == pytest.approx((1 + 3) / 2, rel=0.1)


def find_curves(model: Path) -> Curves:
    curves = find(scan(model), "Norms")
    assert isinstance(curves, Curves)
    return curves


def test_without_values_the_pictures_say_so(model: Path) -> None:
    report = scan(model, headers_only=True)
    magnitudes, norms = find(report, "Values by layer"), find(report, "Norms")
    assert isinstance(magnitudes, HeatMap)
    assert {cell.state for cell in magnitudes.cells.values() if not cell.members} == {"not read"}
    assert isinstance(norms, NoPicture)
    assert norms.caption == "values are not read"


@pytest.mark.parametrize("name", ["tiny-fp8", "tiny-w4a16", "tiny-gptq", "tiny-nvfp4"])
def test_a_quantized_checkpoint_shows_what_is_stored_and_what_is_built(name: str) -> None:
    picture = find(scan(CHECKPOINTS / name), "Quantization")
    assert isinstance(picture, HeatMap)
    assert any(row.endswith(" · stored") for row in picture.rows)
    assert any(" · vllm " in row for row in picture.rows)
    assert {"quantized", "plain"} & {cell.state for cell in picture.cells.values()}


def test_the_experts_of_an_engine_are_built_as_its_first_one() -> None:
    picture = find(scan(CHECKPOINTS / "tiny-fp8"), "Quantization")
    assert isinstance(picture, HeatMap)
    built = {
        picture.rows[row].rpartition(" · ")[2].partition(" ")[0]: {inner.state for inner in cell.members.values()}
        for (row, _), cell in picture.cells.items()
        if picture.rows[row].startswith("mlp.experts.*.up_proj")
    }
    assert built == {side: {"quantized"} for side in ("stored", "vllm", "sglang")}


@pytest.mark.parametrize(
    ("ignored", "state", "note"),
    [
        ("model.layers.0.mlp.down_proj", "unlike", "built plain"),
        ("model.layers.0.self_attn.q_proj", "refused", "the list matches q_proj of model.layers.0.self_attn.qkv_proj"),
    ],
)
def test_what_a_consumer_builds_otherwise_or_refuses(tmp_path: Path, ignored: str, state: str, note: str) -> None:
    folder = copy_quantized(tmp_path, {"ignore": ["lm_head", ignored]})
    picture = find(scan(folder), "Quantization")
    assert isinstance(picture, HeatMap)
    row = next(row for row in picture.rows if row.startswith(ignored.split("0.")[1]) and " · vllm " in row)
    cell = picture.cells[picture.rows.index(row), picture.columns.index("0")]
    assert (cell.state, cell.name) == (state, ignored)
    assert cell.note.startswith(note)


def test_a_configuration_that_a_consumer_refuses_is_refused_everywhere(tmp_path: Path) -> None:
    picture = find(scan(copy_quantized(tmp_path, {"format": None, "config_groups": None})), "Quantization")
    assert isinstance(picture, HeatMap)
    of_vllm = {cell.state for (row, _), cell in picture.cells.items() if " · vllm " in picture.rows[row]}
    assert of_vllm == {"refused"}
    assert "vllm refuses the checkpoint: " in picture.caption


def copy_quantized(folder: Path, changes: dict[str, object]) -> Path:
    copy = Path(shutil.copytree(CHECKPOINTS / "tiny-w4a16", folder / "copy"))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] |= changes
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


@pytest.mark.parametrize("folder", sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir()))
def test_every_example_has_pictures_that_can_be_drawn(folder: str) -> None:
    report = scan(CHECKPOINTS / folder)
    assert not [picture.caption for picture in report.pictures if "could not be drawn" in picture.caption]


def test_nobody_can_draw_more_rows_than_a_model_has() -> None:
    grid = build_layer_grid(f"name{number}.weight" for number in range(1000))
    assert len(grid.rows) == MOST_ROWS
    assert grid.left_out == 600


def test_a_second_stack_has_rows_of_its_own() -> None:
    names = [f"{stack}.{layer}.up.weight" for stack in ("visual.blocks", "model.layers") for layer in range(3)]
    assert build_layer_grid(names).rows == ("visual.blocks: up", "model.layers: up")


def test_a_stack_without_a_name_leaves_room_for_what_is_outside() -> None:
    grid = build_layer_grid(["0.up.weight", "1.up.weight", "head.weight", "1."])
    assert (grid.rows, grid.columns, grid.left_out) == (("up", "head", ""), ("–", "0", "1"), 0)


def test_experts_between_which_other_tensors_stand_share_their_place() -> None:
    names = [f"h.{layer}.experts.{expert}.up" for expert in range(3) for layer in range(2)]
    alike = dict.fromkeys(names, HeatCell(state="quiet"))
    for cells in (alike, alike | {names[2]: HeatCell(state="bad", name=names[2])}):
        drawn = draw_layer_map("Title", "", cells, ())
        assert drawn is not None
        assert [list(cell.members) for cell in drawn.cells.values()] == [["0", "1", "2"]] * 2
        assert {inner.name: inner.state for cell in drawn.cells.values() for inner in cell.members.values()} == {
            name: cells[name].state for name in names
        }
