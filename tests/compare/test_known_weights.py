"""A checkpoint against a manifest or an identity file: equal by digest or not, and no values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import ckptcheck
from ckptcheck import CkptcheckError
from ckptcheck.cli.app import build_app
from ckptcheck.compare.manifest import read_manifest, write_manifest
from ckptcheck.errors import UsageError
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.paths import ROOT

LLAMA = CHECKPOINTS / "tiny-llama"


@pytest.fixture(params=["manifest", "identity"])
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "weights.json"
    if request.param == "manifest":
        write_manifest(ckptcheck.manifest(LLAMA), path)
    else:
        path.write_text(json.dumps(ckptcheck.identity(LLAMA).to_dict()))
    return path


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(LLAMA, tmp_path / "changed"))
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, file, {"format": "pt"})
    return folder


def test_the_same_weights_are_equal_by_identity(known: Path) -> None:
    for sides in ((LLAMA, known), (known, LLAMA), (known, known)):
        report = ckptcheck.diff(*sides)
        assert (report.verdict, report.exit_code("error")) == ("clean", 0)
        assert report.headline.endswith("equal by identity; no values were compared")
        assert report.identities["first"] == report.identities["second"] == ckptcheck.identity(LLAMA).identity


def test_what_differs_is_named_by_tensor(known: Path, changed: Path) -> None:
    (found,) = ckptcheck.diff(known, changed).findings
    assert (found.code, found.key) == ("MAN007", "model.norm.weight")
    assert found.message == f"1 tensor has other contents in {changed} than in {known}: model.norm.weight"
    # statistics of values belong to a comparison of values
    assert not any("max" in line for section in ckptcheck.diff(changed, known).sections for line in section.lines)


def test_the_command_says_that_no_values_were_compared(known: Path) -> None:
    result = CliRunner().invoke(build_app(), ["diff", str(LLAMA), str(known)])
    assert result.exit_code == 0
    assert "identity of the first and the second" in result.stdout
    assert "equal by identity; " in result.stdout
    assert "holds no values, so none were compared" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("option", "value"),
    [("rtol", 0.1), ("atol", 0.1), ("cast", "bf16"), ("previous", LLAMA), ("critic", True)],
)
def test_options_about_values_are_refused(option: str, value: object, known: Path) -> None:
    with pytest.raises(UsageError, match=f"--{option} has no effect with a manifest or an identity file"):
        ckptcheck.diff(LLAMA, known, **{option: value})  # type: ignore[arg-type]


def test_digests_are_not_divided_among_machines(known: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        build_app(), ["diff", str(LLAMA), str(known), "--part", "1/2", "-o", str(tmp_path / "part.json")]
    )
    assert isinstance(result.exception, UsageError)
    assert "--part has no effect with a manifest or an identity file" in result.exception.message


def test_a_run_with_other_names_cannot_be_compared(known: Path) -> None:
    with pytest.raises(
        CkptcheckError, match=r"has Megatron's names and .* Hugging Face's, so no tensor can be compared"
    ):
        ckptcheck.diff(ROOT / "fixtures/megatron/dense", known)


def test_files_that_are_damaged_or_old_say_so(known: Path, tmp_path: Path) -> None:
    content = json.loads(known.read_text())
    table = content["weights" if "weights" in content else "tensors"]
    table["model.norm.weight"]["digest"] = "0" * 32
    known.write_text(json.dumps(content))
    with pytest.raises(CkptcheckError, match="is damaged: its identity is not that of the"):
        ckptcheck.diff(LLAMA, known)
    old = tmp_path / "old.json"
    manifest = ckptcheck.manifest(LLAMA)
    manifest.identity, manifest.weights = None, {}
    write_manifest(manifest, old)
    assert read_manifest(old).identity is None
    with pytest.raises(CkptcheckError, match="has no identity: an older version wrote it"):
        ckptcheck.diff(LLAMA, old)
    for text, message in (
        ('{"schema": "ckptcheck-identity/1"}', "is not what ckptcheck identity writes"),
        (json.dumps(ckptcheck.identity(LLAMA).to_dict() | {"tensors": {}}), "lists no tensor"),
        (json.dumps(ckptcheck.identity(LLAMA).to_dict() | {"schema": "ckptcheck-identity/9"}), "has the schema"),
    ):
        old.write_text(text)
        with pytest.raises(CkptcheckError, match=message):
            ckptcheck.diff(LLAMA, old)
