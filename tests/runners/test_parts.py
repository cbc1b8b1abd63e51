"""Parts that several machines compute, and what is made of them: the same as on one machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ckptcheck
from ckptcheck.checkpoint import torch_archive
from ckptcheck.compare.matching import compare_pass
from ckptcheck.errors import CkptcheckError, EvidenceError, UsageError
from ckptcheck.runners import parts as module
from ckptcheck.runners.parts import PartFile, find_share, read_parts
from ckptcheck.values import value_pass
from ckptcheck.values.stats import ChunkStats
from tests.limited_child import run_limited
from tests.paths import FIXTURES

CHECKPOINTS, MEGATRON = FIXTURES / "checkpoints", FIXTURES / "megatron"
NUMBER = 7


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the fixtures, which are small, into many units."""
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)
    monkeypatch.setattr(compare_pass, "TASK_SLICES", 2)
    monkeypatch.setattr(torch_archive, "WINDOW", 64)


@pytest.fixture
def write_all(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes all parts of a command, the last one first, and returns their folder."""

    def write(verb: Any, *targets: Any, **options: Any) -> Path:
        folder = tmp_path / "parts"
        for index in reversed(range(NUMBER)):
            ckptcheck.write_part(verb, *targets, part=f"{index}/{NUMBER}", folder=folder, **options)
        return folder

    return write


def damage(tmp_path: Path, name: str = "tiny-llama") -> Path:
    """A copy of a checkpoint in which the second half of the last file is NaN."""
    folder = tmp_path / name
    shutil.copytree(CHECKPOINTS / name, folder)
    path = sorted(folder.glob("*.safetensors"))[-1]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\xff" * (len(content) - len(content) // 2))
    return folder


@pytest.mark.parametrize("name", ["tiny-llama-sharded", "tiny-qwen3-moe", "tiny-w4a16", "tiny-nvfp4"])
def test_a_scan_of_seven_parts(write_all: Callable[..., Path], name: str) -> None:
    folder = write_all("scan", CHECKPOINTS / name)
    plans = [part.passes for part in read_parts(folder)]
    assert sum(bool(next(iter(passes.values())).results) for passes in plans) > 4
    joined = ckptcheck.join(folder)
    assert joined.to_dict() == ckptcheck.scan([CHECKPOINTS / name]).to_dict()


@pytest.mark.parametrize("run", ["tp2-pp2", "legacy-tp2", "optimizer-model-space"])
def test_a_megatron_run_of_seven_parts(write_all: Callable[..., Path], run: str) -> None:
    folder = write_all("scan", MEGATRON / run)
    assert {name.partition(" of ")[0] for name in read_parts(folder)[0].passes} == {"values", "records"}
    joined = ckptcheck.join(folder)
    assert isinstance(joined, ckptcheck.Reports)
    assert joined[0].to_dict() == ckptcheck.scan(MEGATRON / run).to_dict()


def test_findings_and_options_are_those_of_one_machine(write_all: Callable[..., Path], tmp_path: Path) -> None:
    target = damage(tmp_path)
    folder = write_all("scan", target, select=["VAL", "EMB"], ignore=("VAL010",))
    joined = ckptcheck.join(folder)
    assert isinstance(joined, ckptcheck.Reports)
    assert joined.findings
    assert joined[0].to_dict() == ckptcheck.scan(target, select=["VAL", "EMB"], ignore=["VAL010"]).to_dict()


def test_a_fleet_in_parts(write_all: Callable[..., Path], tmp_path: Path) -> None:
    targets = [damage(tmp_path), CHECKPOINTS / "tiny-qwen3-moe"]
    joined = ckptcheck.join(write_all("scan", *targets))
    assert joined.to_dict() == ckptcheck.scan(targets).to_dict()


def test_a_manifest_and_a_verification(write_all: Callable[..., Path], tmp_path: Path) -> None:
    target = CHECKPOINTS / "tiny-qwen3-moe"
    joined = ckptcheck.join(write_all("manifest", target), tmp_path / "joined.json")
    ckptcheck.manifest(target, tmp_path / "manifest.json")
    assert (tmp_path / "joined.json").read_bytes() == (tmp_path / "manifest.json").read_bytes()
    assert joined == ckptcheck.manifest(target)
    shutil.rmtree(tmp_path / "parts")
    other = damage(tmp_path, "tiny-qwen3-moe")
    verified = ckptcheck.join(write_all("verify", other, tmp_path / "manifest.json"))
    assert isinstance(verified, ckptcheck.Reports)
    assert verified.findings
    assert verified[0].to_dict() == ckptcheck.verify(other, tmp_path / "manifest.json").to_dict()


@pytest.mark.parametrize(
    ("first", "second"),
    [("tiny-llama", None), ("tiny-llama", "tiny-llama-sharded"), ("tiny-llama", "tiny-w4a16")],
)
def test_a_difference(write_all: Callable[..., Path], tmp_path: Path, first: str, second: str | None) -> None:
    sides = CHECKPOINTS / first, damage(tmp_path, first) if second is None else CHECKPOINTS / second
    joined = ckptcheck.join(write_all("diff", *sides, rtol=1e-6))
    assert isinstance(joined, ckptcheck.Reports)
    alone = ckptcheck.diff(*sides, rtol=1e-6)
    assert alone.findings or second is not None
    assert joined[0].to_dict() == alone.to_dict()


@pytest.fixture
def folder(write_all: Callable[..., Path]) -> Path:
    """All parts of a scan."""
    return write_all("scan", CHECKPOINTS / "tiny-llama", select=["VAL"])


def edit(folder: Path, index: int, **changes: Any) -> Path:
    path = folder / f"part-{index}-of-{NUMBER}.ckptcheck-part"
    part = msgspec.msgpack.decode(path.read_bytes(), type=PartFile)
    path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(part, **changes)))
    return path


def refusal(folder: Path) -> tuple[str, str | None]:
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.join(folder)
    return caught.value.message, caught.value.hint


def command(folder: Path, label: str) -> str:
    return f"ckptcheck scan {CHECKPOINTS / 'tiny-llama'} --select VAL --part {label} -o {folder}"


def test_a_missing_part(folder: Path) -> None:
    (folder / "part-3-of-7.ckptcheck-part").unlink()
    assert refusal(folder) == (f"part 3/7 is missing in {folder}", f"run it: {command(folder, '3/7')}")
    for index in (0, 1, 2):
        (folder / f"part-{index}-of-7.ckptcheck-part").unlink()
    message, hint = refusal(folder)
    assert message == f"parts 0/7, 1/7, 2/7 and 1 more are missing in {folder}"
    assert hint == f"run them: {'; '.join(command(folder, f'{index}/7') for index in (0, 1, 2))}, and so the other 1"


def test_a_doubled_part(folder: Path) -> None:
    shutil.copyfile(folder / "part-3-of-7.ckptcheck-part", folder / "z.ckptcheck-part")
    message = "part 3/7 is there twice: part-3-of-7.ckptcheck-part and z.ckptcheck-part"
    assert refusal(folder) == (message, f"remove {folder / 'z.ckptcheck-part'}")


def test_a_part_of_another_number_and_of_other_options(folder: Path) -> None:
    ckptcheck.write_part("scan", CHECKPOINTS / "tiny-llama", part="0/8", folder=folder, select=["VAL"])
    message, hint = refusal(folder)
    assert message == f"part-0-of-8.ckptcheck-part is of another command than most parts: {command(folder, '0/8')}"
    assert hint == f"move {folder / 'part-0-of-8.ckptcheck-part'} to a folder of its own"
    (folder / "part-0-of-8.ckptcheck-part").unlink()
    ckptcheck.write_part("scan", CHECKPOINTS / "tiny-llama", part="2/7", folder=folder, select=["EMB"])
    assert refusal(folder)[0].startswith("part-2-of-7.ckptcheck-part is of another command than most parts")


def test_a_part_whose_target_is_no_list(folder: Path) -> None:
    """A damaged one: its command is named all the same."""
    edit(folder, 3, arguments={"*": 5})
    assert refusal(folder)[0].endswith(
        "is of another command than most parts: ckptcheck scan 5 --part 3/7 -o " + str(folder)
    )


def test_a_part_of_another_version(folder: Path) -> None:
    edit(folder, 2, version="0.0.1")
    message = f"part-2-of-7.ckptcheck-part was written by ckptcheck 0.0.1, and this is {ckptcheck.__version__}"
    assert refusal(folder) == (message, f"run it again: {command(folder, '2/7')}")


def test_a_part_of_another_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_pass, "READ_BYTES", 1024)
    joined = ckptcheck.join(folder)
    assert joined.verdict == "incomplete"
    assert isinstance(joined, ckptcheck.Reports)
    text = f"part 0/7 divides the values of {CHECKPOINTS / 'tiny-llama'} in another way than this run; run it again: "
    text += command(folder, "0/7")
    assert text in {error for _, error in joined[0].crashed}


def test_a_file_that_is_no_part(folder: Path) -> None:
    (folder / "part-9-of-9.ckptcheck-part").write_bytes(b"\x00")
    assert "part-9-of-9.ckptcheck-part is no part of ckptcheck" in refusal(folder)[0]
    (folder / "part-9-of-9.ckptcheck-part").unlink()
    path = folder / "part-1-of-7.ckptcheck-part"
    path.write_bytes(path.read_bytes()[:-3])
    assert "part-1-of-7.ckptcheck-part is no part of ckptcheck" in refusal(folder)[0]


def test_no_part_at_all(tmp_path: Path) -> None:
    assert refusal(tmp_path)[0] == f"{tmp_path} holds no part"
    assert refusal(tmp_path / "none")[0].startswith(f"cannot list {tmp_path / 'none'}")


def test_a_checkpoint_that_changed_since(tmp_path: Path, write_all: Callable[..., Path]) -> None:
    target = damage(tmp_path)
    folder = write_all("scan", target)
    os.utime(target / "model.safetensors", (1, 1))
    joined = ckptcheck.join(folder)
    assert joined.verdict == "incomplete"
    assert isinstance(joined, ckptcheck.Reports)
    assert (
        "part 0/7 was made before model.safetensors changed; run it again: ckptcheck scan" in joined[0].crashed[-1][1]
    )


def test_a_part_that_could_not_read_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, joined into an incomplete report, and read again at a rerun."""
    target, folder = CHECKPOINTS / "tiny-llama", tmp_path / "parts"
    read = value_pass.BatchScan.compute

    def refuse(self: Any, unit: Any) -> Any:
        return value_pass.BatchResult(reason="the disk is on fire")

    for index in range(2):
        monkeypatch.setattr(value_pass.BatchScan, "compute", refuse if index else read)
        if not index:
            ckptcheck.write_part("scan", target, part="0/2", folder=folder)
            continue
        with pytest.raises(EvidenceError, match="part 1/2 could not read everything: values of ") as caught:
            ckptcheck.write_part("scan", target, part="1/2", folder=folder)
        assert caught.value.hint == f"run it again: ckptcheck scan {target} --part 1/2 -o {folder}"
    joined = ckptcheck.join(folder)
    assert isinstance(joined, ckptcheck.Reports)
    assert joined[0].error == "could not read model.safetensors: the disk is on fire"
    monkeypatch.setattr(value_pass.BatchScan, "compute", read)
    ckptcheck.write_part("scan", target, part="1/2", folder=folder)
    assert ckptcheck.join(folder).verdict == "clean"


def test_the_runner_of_parts(folder: Path) -> None:
    report = ckptcheck.scan(CHECKPOINTS / "tiny-llama", select=["VAL"], runner=ckptcheck.Parts(folder))
    assert (
        report.to_dict()
        == ckptcheck.scan(CHECKPOINTS / "tiny-llama", select=["VAL"], runner=ckptcheck.Local()).to_dict()
    )


@pytest.mark.parametrize("part", ["7/7", "-1/7", "1", "1/0", "a/b", "1/7/2"])
def test_what_is_no_part(tmp_path: Path, part: str) -> None:
    with pytest.raises(UsageError, match="is no part"):
        ckptcheck.write_part("scan", CHECKPOINTS / "tiny-llama", part=part, folder=tmp_path)


def test_a_part_has_values(tmp_path: Path) -> None:
    for options in ({"headers_only": True}, {"fix": True}):
        with pytest.raises(UsageError, match="has no effect with --part: ckptcheck join makes the report"):
            ckptcheck.write_part("scan", CHECKPOINTS / "tiny-llama", part="0/2", folder=tmp_path, **options)


@pytest.mark.parametrize("weights", [[], [0, 0, 0], [5], [1] * 100, [100, 1, 1, 1], [1, 1, 1, 100], [0, 7, 0, 7, 3]])
@pytest.mark.parametrize("number", [1, 2, 3, 7, 200])
def test_shares_cover_every_unit_once(weights: list[int], number: int) -> None:
    bounds = [find_share(weights, index, number) for index in range(number)]
    assert [at for begin, end in bounds for at in range(begin, end)] == [*range(len(weights))]


def test_shares_are_about_equal() -> None:
    weights = [8] * 1000 + [3] * 500
    shares = [sum(weights[slice(*find_share(weights, index, 64))]) for index in range(64)]
    assert max(shares) <= sum(weights) / 64 + 8


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptcheck.cli.app import build_app

    def run(*words: str) -> int:
        try:
            build_app()(words, standalone_mode=False)
        except SystemExit as ended:
            return int(ended.code or 0)
        except CkptcheckError as error:
            return error.message  # type: ignore[return-value]
        return 0

    target, folder = str(CHECKPOINTS / "tiny-llama"), str(tmp_path / "parts")
    for index in range(2):
        assert run("scan", target, "--set", "near-zero-threshold=2", "--part", f"{index}/2", "-o", folder) == 0
    assert run("join", folder, "--format", "json", "-o", str(tmp_path / "joined.json")) == 0
    run("scan", target, "--set", "near-zero-threshold=2", "--format", "json", "-o", str(tmp_path / "alone.json"))
    assert (tmp_path / "joined.json").read_text() == (tmp_path / "alone.json").read_text()
    assert run("scan", target, "--part", "0/2", "-o", folder, "--format", "json") == (
        "--format has no effect with --part: ckptcheck join makes the report"
    )
    assert run("scan", target, "--part", "0/2") == "--part needs the folder of all parts"
    assert run("manifest", target, "--part", "0/1", "-o", str(tmp_path / "manifest")) == 0
    assert run("join", str(tmp_path / "manifest")) == "the parts are of a manifest, which needs a file"
    assert run("join", str(tmp_path / "manifest"), "-o", str(tmp_path / "m.json")) == 0
    assert run("verify", target, str(tmp_path / "m.json"), "--part", "0/1", "-o", str(tmp_path / "verify")) == 0
    assert run("join", str(tmp_path / "verify")) == 0
    assert module.SUFFIX in os.listdir(folder)[0]


OWN_RULE = '''"""There is nothing.

## What it checks
Nothing.

## Why it matters
Nothing.

## How to fix
Nothing.

## When it can be wrong
Never.

## Seen in
Nothing.
"""

from ckptcheck import rule


@rule("OWN001", "own", severity="info")
def check(ckpt):
    return iter(())
'''


def write_alone(folder: Path, **changes: Any) -> Path:
    """Write one part that says of itself what it likes."""
    folder.mkdir(exist_ok=True)
    form = {
        "schema": module.SCHEMA, "version": ckptcheck.__version__, "verb": "scan", "index": 0, "number": 1, "passes": {},
        "arguments": {"*": [str(CHECKPOINTS / "tiny-llama")]},
    }  # fmt: skip
    (folder / f"a{module.SUFFIX}").write_bytes(msgspec.msgpack.encode(form | changes))
    return folder


@pytest.mark.parametrize("option", ["rules", "config", "stats", "write_baseline", "baseline"])
def test_a_part_runs_no_code_and_writes_no_file(tmp_path: Path, option: str) -> None:
    (rules := tmp_path / "rules").mkdir()
    (rules / "x001_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "c.toml").write_text("rules = ['rules']\n")
    value = {"rules": [str(rules)], "config": str(tmp_path / "c.toml")}.get(option, str(tmp_path / "written"))
    arguments = {"*": [str(CHECKPOINTS / "tiny-llama")], option: value}
    message, hint = refusal(write_alone(tmp_path / "parts", arguments=arguments))
    assert message.startswith(f"the parts were made with --{option.replace('_', '-')} ")
    assert hint == "give --trust-parts to join if nobody but you writes to the folder of the parts"
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "written").exists()


def test_options_of_trusted_parts_are_taken(write_all: Callable[..., Path], tmp_path: Path) -> None:
    (rules := tmp_path / "rules").mkdir()
    (rules / "own001_own.py").write_text(OWN_RULE)
    folder = write_all("scan", CHECKPOINTS / "tiny-llama", rules=[str(rules)], select=["OWN"])
    assert "--rules" in refusal(folder)[0]
    joined = ckptcheck.join(folder, trust_parts=True)
    assert isinstance(joined, ckptcheck.Reports)
    assert "OWN001" in joined[0].passed


@pytest.mark.parametrize(
    "changes",
    [
        {"verb": "gate"},
        {"arguments": {}},
        {"arguments": {"*": []}},
        {"arguments": {"*": "x"}},
        {"arguments": {"*": [1]}},
        {"arguments": {"*": ["a"], "set": 3}},
        {"arguments": {"*": ["a"], "set": ["fix=on"]}},
        {"arguments": {"*": ["a"], "set": ["near-zero-threshold=nan"]}},
        {"verb": "manifest", "arguments": {"*": ["a", "b"]}},
        {"verb": "diff", "arguments": {"*": ["a"]}},
        *({"arguments": {"*": ["a"], name: value}} for name, value in {
            "jobs": 3, "observer": "x", "nothing": 1, "recursive": "x", "near_zero_threshold": "x", "select": [3], "base": {},
            "near_zero_threshold ": 1,
        }.items()),
        {"number": 10**12},
        {"number": 0},
        {"index": -1},
        {"index": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_a_part_of_nonsense_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_alone(tmp_path / "parts", **changes)
    answer = run_limited(lambda: refusal(folder)[0])
    assert not answer.fault, answer


def _change_results(folder: Path, change: Callable[[list[Any]], object]) -> None:
    """Change what one part computed, whose header, plan and files stay those of the others."""
    for path in sorted(folder.iterdir()):
        form = msgspec.msgpack.decode(path.read_bytes())
        for one in form["passes"].values():
            results = [msgspec.msgpack.decode(raw) for raw in one["results"]]
            if results:
                change(results)
                one["results"] = [msgspec.msgpack.encode(result) for result in results]
                path.write_bytes(msgspec.msgpack.encode(form))
                return
    raise AssertionError("no part has a result")


def _set(chunk: list[Any], **values: Any) -> None:
    """Change fields of the encoded statistics of a piece."""
    for name, value in values.items():
        chunk[ChunkStats.__struct_fields__.index(name)] = value


LIES: dict[str, tuple[str, Callable[[list[Any]], object]]] = {
    "a piece too many": ("scan", lambda results: results[0]["chunks"].append(results[0]["chunks"][0])),
    "a piece too few": ("scan", lambda results: results[0]["chunks"].pop()),
    "a NaN behind the end": ("scan", lambda results: _set(results[0]["chunks"][0], nan=1, first_nan=1 << 60)),
    "fewer NaN than none": ("scan", lambda results: _set(results[0]["chunks"][0], nan=-5)),
    "zeros outside": ("scan", lambda results: _set(results[0]["chunks"][0], zero_runs=[[-9, 1 << 60]])),
    "a pattern of no dtype": ("scan", lambda results: _set(results[0]["chunks"][0], max_pattern=1 << 60)),
    "rows that nobody asked for": ("scan", lambda results: _set(results[0]["chunks"][0], row_max=b"1" * 999_999)),
    "no result at all": ("scan", lambda results: results.pop()),
    "no digest": ("manifest", lambda results: results[0].update(digest="")),
    "sums of another tensor": ("manifest", lambda results: results[0].update(sums={"other": [1, 2]})),
    "sums of no tensor": ("manifest", lambda results: results[0].update(sums={})),
    "sums below zero": (
        "manifest",
        lambda results: results[0].update(sums={name: [-1, -1] for name in results[0]["sums"]}),
    ),
    "a digest and a reason for none": ("manifest", lambda results: results[0].update(unread="no", sums={})),
    "another pair": ("diff", lambda results: results[0][0].__setitem__(0, 9_999)),
    "more differences than elements": ("diff", lambda results: results[0][0][1].update(different=1 << 40)),
    "a difference outside": ("diff", lambda results: results[0][0][1].update(first=[1 << 40, -1])),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_part_whose_results_no_machine_can_have_computed(write_all: Callable[..., Path], lie: str) -> None:
    """Whoever writes to the folder may lie; what fits no piece of the work crashes nothing, and is not counted."""
    verb, change = LIES[lie]
    target = CHECKPOINTS / "tiny-llama"
    options = {"values": True, "select": ["VAL"]} if verb == "scan" else {}
    folder = write_all(verb, *([target, target] if verb == "diff" else [target]), **options)
    _change_results(folder, change)
    if verb == "scan":
        report = ckptcheck.join(folder)
        assert {why.partition("; ")[0] for _, why in report[0].crashed} == {
            f"part {report[0].crashed[0][1].split()[1]} holds other results than this version writes: "
            + (
                "there is not one result for each piece of the work"
                if lie == "no result at all"
                else "a result does not fit its piece of the work"
            )
        }
        assert report.verdict == "incomplete"
        return
    with pytest.raises(EvidenceError, match="a result does not fit its piece of the work"):
        ckptcheck.join(folder)
