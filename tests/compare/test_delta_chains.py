"""Chains of deltas on a real model, compared with whole saves: the right chain, and every way in which it can be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.comparison_cases import read_bytes, read_header, write_bytes
from tests.factories.deltas import (
    Weights,
    encode_change,
    read_weights,
    take_adam_step,
    take_step,
    write_disk_delta,
    write_flush,
    write_weights,
)

ENCODINGS = [("xor", "xxh3-128"), ("overwrite", "blake3")]


@dataclass
class Run:
    """A base, the weights of two steps after it, and the deltas between them."""

    base: Path
    steps: list[Weights]
    deltas: Path
    full: Path

    def name_chain(self, *numbers: int) -> str:
        return "+".join([str(self.base), *(str(self.deltas / f"weight_v{number:06d}") for number in numbers)])

    def save(self, weights: Weights) -> str:
        write_weights(self.full, weights)
        return str(self.full)


def build_run(
    base: Path,
    folder: Path,
    width: int,
    encoding: str,
    checksum: str,
    steps: int = 3,
    step: Callable[..., Weights] | None = None,
) -> Run:
    """step: what a step of training does; None: it changes the last bits of 2 % of the elements."""
    weights = [read_weights(base)]
    for number in range(1, steps + 1):
        weights.append(take_step(weights[-1], number, width=width) if step is None else step(weights[-1], number))
        write_disk_delta(
            folder / "deltas" / f"weight_v{number:06d}", weights[-2], weights[-1], version=f"{number:06d}",
            base=f"{number - 1:06d}", encoding=encoding, checksum=checksum, files=2,
        )  # fmt: skip
    full = shutil.copytree(base, folder / "full")
    run = Run(base, weights, folder / "deltas", full)
    run.save(weights[-1])
    return run


@pytest.fixture(params=ENCODINGS, ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    encoding, checksum = request.param
    return build_run(CHECKPOINTS / "tiny-llama", tmp_path, 4, encoding, checksum)


@pytest.fixture
def plain_run(tmp_path: Path) -> Run:
    return build_run(CHECKPOINTS / "tiny-llama", tmp_path, 4, "xor", "adler32")


def list_codes(chain: str, full: str | Path) -> list[str]:
    return sorted({finding.code for finding in ckptcheck.diff(chain, full).findings if finding.severity == "error"})


def test_the_right_chain_leads_to_the_whole_save(run: Run) -> None:
    for chain in (run.name_chain(1, 2, 3), f"{run.base}+{run.deltas}"):
        report = ckptcheck.diff(chain, run.full)
        assert list_codes(chain, run.full) == []
        assert {"CMP005", "DEL012"} <= set(report.passed)
        assert ckptcheck.identity(chain).identity == ckptcheck.identity(run.full).identity


def test_a_chain_that_ends_earlier_is_another_checkpoint(plain_run: Run) -> None:
    assert list_codes(plain_run.name_chain(1, 2), plain_run.full) == ["CMP005"]
    assert list_codes(plain_run.name_chain(1, 2), plain_run.save(plain_run.steps[2])) == []


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((1, 3), "DEL004"), ((2, 3), "DEL004"), ((2, 1, 3), "DEL004"), ((1, 2, 2, 3), "DEL004")],
    ids=str,
)
def test_a_wrong_chain_is_named_first(run: Run, numbers: tuple[int, ...], code: str) -> None:
    report = ckptcheck.diff(run.name_chain(*numbers), run.full)
    found = [
        finding.code for finding in report.findings if finding.code.startswith("DEL") and finding.severity != "info"
    ]
    # what follows from it is left out, but for changes that find nothing to change
    assert found[0] == code
    assert set(found[1:]) <= {"DEL015"}


def test_another_base(plain_run: Run, tmp_path: Path) -> None:
    base = shutil.copytree(plain_run.base, tmp_path / "other")
    write_weights(base, take_step(plain_run.steps[0], 99, 0.5, 4))
    assert "DEL004" in list_codes(f"{base}+{plain_run.deltas}", plain_run.full)


def test_a_base_that_has_the_delta_already(plain_run: Run) -> None:
    report = ckptcheck.diff(
        f"{plain_run.save(plain_run.steps[1])}+{plain_run.deltas / 'weight_v000001'}", plain_run.full
    )
    overwrites = "DEL015" in {finding.code for finding in report.findings}
    assert overwrites or "DEL004" in {finding.code for finding in report.findings}


def test_a_change_that_no_delta_names(plain_run: Run, tmp_path: Path) -> None:
    silent = {name: data.copy() for name, data in plain_run.steps[3].items()}
    name = next(iter(silent))
    folder = plain_run.deltas / "weight_v000004"
    after = take_step(silent, 5, 0.2, 4)
    write_disk_delta(folder, silent, after | {name: silent[name]}, version="000004", base="000003")
    report = ckptcheck.diff(f"{plain_run.base}+{plain_run.deltas}", plain_run.save(after))
    assert [
        finding.code for finding in report.findings if finding.code.startswith("DEL") and finding.severity == "error"
    ] == []
    # the earlier deltas name the tensor, the last one does not
    only = tmp_path / "only"
    write_disk_delta(only, plain_run.steps[0], after | {name: plain_run.steps[0][name]}, version="1", base="0")
    codes = list_codes(f"{plain_run.base}+{only}", plain_run.full)
    assert codes == ["CMP005", "DEL019"]


def test_one_value_of_the_whole_save_is_another(plain_run: Run) -> None:
    other = {name: data.copy() for name, data in plain_run.steps[3].items()}
    next(iter(other.values()))[5] ^= 1
    assert list_codes(plain_run.name_chain(1, 2, 3), plain_run.save(other)) == ["CMP005"]


def test_flushes_of_verl(tmp_path: Path) -> None:
    base = CHECKPOINTS / "tiny-llama"
    run = build_run(base, tmp_path, 4, "xor", "adler32", steps=2)
    shapes = {
        name: tuple(entry["shape"]) for path in base.glob("*.safetensors") for name, entry in read_header(path).items()
    }
    names = list(shapes)
    for number in (1, 2):
        for part, chosen in enumerate((names[::2], names[1::2])):
            write_flush(
                tmp_path / "flushes" / f"sync{number}" / f"flush{part}.safetensors", run.steps[number - 1], run.steps[number],
                {name: shapes[name] for name in chosen}, dtype="F32",
            )  # fmt: skip
    assert list_codes(f"{base}+{tmp_path / 'flushes'}", run.full) == []
    assert list_codes(f"{base}+{tmp_path / 'flushes' / 'sync2'}", run.full) == ["CMP005"]


def test_a_whole_version_in_a_series_replaces_the_base(plain_run: Run, tmp_path: Path) -> None:
    whole = shutil.copytree(plain_run.base, tmp_path / "whole")
    write_weights(whole, plain_run.steps[1])
    shutil.rmtree(plain_run.deltas / "weight_v000001")
    whole.rename(plain_run.deltas / "weight_v000001")
    report = ckptcheck.diff(f"{plain_run.base}+{plain_run.deltas}", plain_run.full)
    assert list_codes(f"{plain_run.base}+{plain_run.deltas}", plain_run.full) == []
    assert "the chain begins there" in report.sections[0].lines[0]


def test_what_is_not_there_is_named(plain_run: Run, tmp_path: Path) -> None:
    for target, message in (
        (f"{tmp_path / 'nix'}+{plain_run.deltas}", "the base of the chain does not exist"),
        (f"{plain_run.base}+{tmp_path / 'nix'}", "delta 1 of the chain does not exist"),
        (f"{plain_run.base}+{plain_run.deltas}+", "delta 2 of the chain does not exist"),
        (str(plain_run.deltas / "weight_v000001"), "is a delta"),
    ):
        with pytest.raises(CkptcheckError, match=message):
            ckptcheck.diff(target, plain_run.full)


def test_nothing_compared_is_never_a_pass(plain_run: Run, tmp_path: Path) -> None:
    (tmp_path / "unknown").mkdir()
    report = ckptcheck.diff(f"{plain_run.base}+{tmp_path / 'unknown'}", plain_run.base)
    assert report.verdict == "incomplete"
    assert [finding.code for finding in report.findings] == ["DEL001"]


def test_a_folder_with_a_sign_in_its_name_is_no_chain(tmp_path: Path) -> None:
    base = shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "a+b")
    assert ckptcheck.diff(base, base).verdict == "clean"
    before = read_weights(base)
    after = take_step(before, 1, width=4)
    write_disk_delta(tmp_path / "c+d", before, after)
    assert list_codes(f"{base}+{tmp_path / 'c+d'}", base) == ["CMP005"]


def test_a_scan_of_the_result_reads_its_values(plain_run: Run) -> None:
    chain = plain_run.name_chain(1)
    whole, result = ckptcheck.scan(plain_run.save(plain_run.steps[1])), ckptcheck.scan(chain)
    assert result.findings == whole.findings
    assert not set(whole.passed) - set(result.passed)


def test_a_scan_of_deltas_alone(plain_run: Run) -> None:
    for target in (plain_run.deltas, plain_run.deltas / "weight_v000002"):
        report = ckptcheck.scan(target)
        assert not report.findings
        assert "DEL001" in report.passed
        assert "nothing was applied" in report.sections[0].lines[0]


def list_delta_codes(chain: str) -> set[str]:
    """The errors of the rules on deltas alone: naming the cause of each difference takes a minute on real weights."""
    rules = [rule for rule in load_rules() if rule.on == "deltas"]
    findings = run_rules(open_checkpoint(chain), rules).findings
    return {finding.code for finding in findings if finding.severity == "error"}


def cut_model(model: Path, folder: Path, layers: int) -> Path:
    """The first layers of a model and its last norm, by themselves."""
    folder.mkdir()
    tensors, shapes = {}, {}
    for path in sorted(model.glob("*.safetensors")):
        header = read_header(path)
        for name, (dtype, data) in read_bytes(path).items():
            if name == "model.norm.weight" or any(f"layers.{layer}." in name for layer in range(layers)):
                tensors[name], shapes[name] = (dtype, data), tuple(header[name]["shape"])
    write_bytes(folder / "model.safetensors", tensors, shapes)
    return folder


@pytest.mark.slow
def test_wrong_chains_on_real_weights(smollm2: Path, tmp_path: Path) -> None:
    base = cut_model(smollm2, tmp_path / "base", 2)
    run = build_run(base, tmp_path, 2, "overwrite", "xxh3-128", steps=2, step=take_adam_step)
    (table,) = ckptcheck.diff(run.name_chain(1, 2), run.full).sections
    elements = sum(len(data) for data in run.steps[0].values()) // 2
    for row in table.rows:
        assert row[4] <= 19
        assert 0.001 < row[5] / elements < 0.2  # type: ignore[operator]

    assert list_delta_codes(run.name_chain(1, 2)) == set()
    assert list_delta_codes(run.name_chain(2)) == {"DEL004"}
    assert list_delta_codes(run.name_chain(2, 1)) == {"DEL004"}
    name = "model.layers.1.mlp.up_proj.weight"
    foreign = run.steps[2] | {f"module.{name}": run.steps[1][name]}
    before = run.steps[1] | {f"module.{name}": run.steps[0][name]}
    change = encode_change("overwrite", run.steps[1][name], run.steps[2][name])
    beyond, elsewhere = bytearray(change), bytearray(change)
    beyond[4:8] = (len(run.steps[1][name]) + 5).to_bytes(4, "little")
    elsewhere[4] ^= 0xFF
    for title, weights, raw, codes in (
        ("a tensor more", (before, foreign), {}, {"DEL007"}),
        ("an index beyond the end", (run.steps[1], run.steps[2]), {name: bytes(beyond)}, {"DEL007"}),
        ("an index changed", (run.steps[1], run.steps[2]), {name: bytes(elsewhere)}, {"DEL012"}),
    ):
        shutil.rmtree(run.deltas / "weight_v000002")
        folder = run.deltas / "weight_v000002"
        write_disk_delta(folder, *weights, version="000002", base="000001", encoding="overwrite", raw=raw)
        assert list_delta_codes(run.name_chain(1, 2)) == codes, title


@pytest.mark.matrix
@pytest.mark.slow
def test_a_whole_model(smollm2: Path, tmp_path: Path) -> None:
    run = build_run(smollm2, tmp_path, 2, "xor", "xxh3-128", steps=2, step=take_adam_step)
    assert ckptcheck.diff(run.name_chain(1, 2), run.full).verdict == "clean"
    assert ckptcheck.identity(run.name_chain(1, 2)).identity == ckptcheck.identity(run.full).identity
