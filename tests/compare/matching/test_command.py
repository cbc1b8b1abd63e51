"""`ckptcheck diff` as a command: exit codes, formats, accounts, and trouble in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS, edit_tensors

TINY = CHECKPOINTS / "tiny-llama"


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", "diff", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "other"))


def test_equal_is_0_and_every_tensor_is_accounted_for(other: Path) -> None:
    result = command(TINY, other)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{TINY} ↔ {other}" in result.stdout
    assert "30 matched · 0 missing · 0 extra · 0 aliased · bitwise" in result.stdout
    assert "✓ clean" in result.stdout


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "github", "text"])
def test_different_is_1_in_every_format(other: Path, form: str, tmp_path: Path) -> None:
    edit_tensors(other / "model.safetensors", {"model.norm.weight": False})
    result = command(TINY, other, "--format", form, "-o", tmp_path / "report")
    assert result.returncode == 1
    assert result.stderr.endswith(f"✗ 1 error · 6 rules passed · the report is {tmp_path / 'report'}\n")
    assert "missing in the second checkpoint: model.norm.weight" in (tmp_path / "report").read_text(encoding="utf-8")


def test_the_tolerance_is_printed(other: Path) -> None:
    assert "· rtol 0, atol 0.001" in command(TINY, other, "--atol", "1e-3").stdout


def test_what_cannot_be_compared_is_2(other: Path, tmp_path: Path) -> None:
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:300])
    result = command(TINY, other)
    assert result.returncode == 2
    assert "cannot be compared: model.safetensors is missing or cannot be read" in result.stderr
    assert command(TINY, tmp_path / "nowhere").returncode == 2
    assert command(TINY, TINY, "--cast", "int4").stderr.startswith("ckptcheck: 'int4' is no dtype to compare in")


def test_nothing_in_common_is_not_equal() -> None:
    result = command(TINY, CHECKPOINTS / "tiny-lora", "--format", "json")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert "CMP006" in [finding["code"] for finding in report["findings"]]
    assert report["subject"].startswith("0 matched · 30 missing · ")


def _held_against(tmp_path: Path, ours: dict[str, object], theirs: dict[str, object]) -> tuple[str, list[str]]:
    """The accounts, and the findings with their hints, of two files of these tensors."""
    import numpy as np
    from safetensors.numpy import save_file

    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.open_side import open_side
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules

    paths = []
    for number, tensors in enumerate((ours, theirs)):
        paths.append(tmp_path / str(number) / "model.safetensors")
        paths[-1].parent.mkdir(exist_ok=True)
        save_file({name: np.asarray(value) for name, value in tensors.items()}, paths[-1])
    report = run_rules(Comparison(*(open_side(str(path)) for path in paths)), rule_loader.load_rules())
    assert not report.crashed
    return report.subject, [
        f"{finding.code} {finding.place.partition(' ')[2]}: {finding.message} → {finding.hint}"
        for finding in report.findings
    ]


def test_counterparts_that_all_have_other_shapes_are_not_matched(tmp_path: Path) -> None:
    import numpy as np

    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(3)]
    ours, theirs = ({name: np.ones(shape, np.float32) for name in names} for shape in ((2, 3), (3, 2)))
    subject, found = _held_against(tmp_path, ours, theirs)
    assert subject == "0 matched · 0 missing · 0 extra · 0 aliased · 3 of other shapes · bitwise"
    assert found == [
        f"CMP003 {names[0]}: 3 tensors are [2, 3] in the first checkpoint and [3, 2] in the second (transposed): "
        "model.layers.{0-2}.mlp.up_proj.weight → run ckptcheck scan on both to see which one fits its config",
        "CMP006 : nothing was compared: all 3 counterparts have other shapes → check that both are the same model",
    ]


def test_what_differs_is_called_what_it_is(tmp_path: Path) -> None:
    import numpy as np

    def said(ours: list[float], theirs: list[float]) -> str:
        one, other = ({"x": np.array(side, np.float32)} for side in (ours, theirs))
        (text,) = _held_against(tmp_path, one, other)[1]
        return text.partition("; ")[2].partition(", the first")[0]

    infinite, nan = float("inf"), float("nan")
    assert said([1, 2, 3, 4], [infinite] * 4) == "4 of 4 elements, 4 NaN or infinite on one side"
    assert said([0, 2, 0, 4], [-0.0, 2, -0.0, 4]) == "2 of 4 elements, all of them differ only in the sign of zero"
    assert (
        said([0, 2, 0, 4], [-0.0, 2, nan, 4])
        == "2 of 4 elements, 1 of them differ only in the sign of zero, 1 NaN or infinite on one side"
    )
    assert said([0, 2, 3, 4], [-0.0, 5, nan, 4]) == "3 of 4 elements, at most 3 apart, 1 NaN or infinite on one side"


def test_the_first_place_is_told_of_one_tensor_only(tmp_path: Path) -> None:
    import numpy as np

    values = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
    ours = {f"model.layers.{layer}.mlp.up_proj.weight": values[layer] for layer in range(2)}
    moved = np.where(np.arange(8) == 5, np.float32(0.37), np.float32(0))
    theirs = {name: value + moved * np.arange(4, dtype=np.float32)[:, None] for name, value in ours.items()}
    (both,) = _held_against(tmp_path, ours, theirs)[1]
    assert "2 tensors differ" in both
    assert ", the first at " not in both
    (one,) = _held_against(tmp_path, ours, theirs | dict(list(ours.items())[:1]))[1]
    assert ", the first at [1, 5] → " in one


def test_hints_about_critics_are_for_heads(tmp_path: Path) -> None:
    import numpy as np

    both = {"model.norm.weight": np.ones(4, np.float32)}

    def hints(ours: str, theirs: str) -> list[str]:
        found = _held_against(tmp_path, both | {ours: np.ones((1, 4))}, both | {theirs: np.ones((2, 4))})[1]
        return [text.partition(" → ")[2] for text in found]

    assert hints("lm_head.weight", "score.weight") == [
        "convert again, or compare with --critic if one side is a critic",
        "compare with --critic if one side is a critic",
    ]
    assert hints("model.layers.0.a.weight", "model.layers.0.b.weight") == [
        "convert again, unless it was left out on purpose or the two are different models",
        "if a shard of an older save remains there, convert into an empty folder; if not, the first one may lack it",
    ]


def test_a_tensor_without_a_name_is_quoted(tmp_path: Path) -> None:
    import numpy as np

    ours = {"": np.ones(2, np.float32), "x": np.ones(2, np.float32)}
    (text,) = _held_against(tmp_path, ours, {"x": np.ones(2, np.float32)})[1]
    assert text.startswith('CMP001 "": 1 tensor is missing in the second checkpoint: "" → convert again')


def test_a_file_that_ends_while_it_is_read_is_2(other: Path) -> None:
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.open_side import open_side
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules

    seen = Comparison(open_side(str(TINY)), open_side(str(other)))
    _ = seen.second
    path = other / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    report = run_rules(seen, rule_loader.load_rules())
    assert report.exit_code("error") == 2
    assert "it ends earlier than its header says" in report.crashed[0][1]


def test_heavy_libraries_are_not_loaded(other: Path) -> None:
    program = (
        "import sys; from ckptcheck.cli.app import build_app\n"
        "try: build_app()(['diff', *sys.argv[1:]])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(TINY), str(other)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_how_a_tensor_of_another_shape_is_related_is_said(tmp_path: Path) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    whole = draw.standard_normal((16, 8)).astype(np.float32)
    name, embedding = "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"
    for key, other, due in (
        (name, whole.T.copy(), "it is [16, 8] in the first checkpoint and [8, 16] in the second (transposed)"),
        (name, whole[8:], "[8, 8] in the second (the shard of tensor-parallel rank 1 of 2 alone)"),
        (name, whole[:5] + 1, "it is [16, 8] in the first checkpoint and [5, 8] in the second →"),
        (embedding, np.vstack([whole, whole[:4] * 0]),
         "[20, 8] in the second (padding of the vocabulary was not cut off: 20 rows instead of 16, the first 16 are right)"),
    ):  # fmt: skip
        _, found = _held_against(tmp_path, {key: whole}, {key: other})
        assert due in found[0]
        assert found[0].startswith("CMP003")


def test_what_was_not_updated_is_stale_where_the_version_before_is_known(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    changed = shutil.copytree(TINY, tmp_path / "new")
    held = load_file(changed / "model.safetensors")
    save_file({name: value * 2 + 1 for name, value in held.items()}, changed / "model.safetensors", {"format": "pt"})
    result = command(changed, TINY, "--previous", TINY)
    assert result.returncode == 1
    assert "still the previous version" in result.stdout
    assert "still the previous version" not in command(changed, TINY).stdout


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "model.language_model."])
@pytest.mark.parametrize("turned", [False, True])
def test_a_prefix_before_all_names_is_named(tmp_path: Path, prefix: str, turned: bool) -> None:
    import numpy as np

    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(3)] + ["lm_head.weight"]
    plain = {name: np.ones((2, 3), np.float32) for name in names}
    wrapped = {prefix + name: value for name, value in plain.items()}
    _, found = _held_against(tmp_path, *((wrapped, plain) if turned else (plain, wrapped)))
    said = (
        f"the names of the {'first' if turned else 'second'} checkpoint are those of the other with the prefix {prefix}"
    )
    assert [line for line in found if line.startswith("CMP006") and said in line]
