"""``ckptcheck scan``: selection, settings, baselines, repairs and rules of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.factories.command_line import RULE, SCHEMA, run


def test_a_broken_target_does_not_stop_the_others(here: Path) -> None:
    result = run(here, "scan", "nowhere", "sound", "broken", "--format", "json")
    assert result.returncode == 2
    reports = json.loads(result.stdout)
    assert (reports["verdict"], len(reports["findings"])) == ("incomplete", 1)
    assert reports["findings"][0]["target"] == "broken"
    assert [report["verdict"] for report in reports["reports"]] == ["incomplete", "clean", "findings"]
    assert reports["reports"][0]["error"].startswith("nowhere does not exist (name a folder")
    jsonschema.validate(reports, SCHEMA)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--fail-on", "never"], 0),
        (["--fail-on", "error"], 1),
        (["--select", "CFG002,IDX010"], 0),
        (["--select", "IDX"], 1),
        (["--ignore", "IDX001"], 0),
        (["--select", "missing-shard"], 1),
        (["--select", "ADP"], 2),
        (["--select", "IDX001", "--ignore", "IDX001"], 2),
    ],
)
def test_selection_decides_the_exit(here: Path, flags: list[str], code: int) -> None:
    result = run(here, "scan", "broken", *flags)
    assert result.returncode == code, result.stdout
    if code == 2:
        assert "incomplete: no selected rule looked at this target" in result.stdout


def test_ignored_is_skipped_with_the_reason(here: Path) -> None:
    (here / "ckptcheck.toml").write_text('fail-on = "warning"\n[ignore]\nIDX001 = "the second half is in the cloud"\n')
    report = json.loads(run(here, "scan", "broken", "--format", "json").stdout)
    assert {"code": "IDX001", "reason": "the second half is in the cloud"} in report["skipped"]
    assert "IDX001" not in report["passed"]
    assert report["verdict"] == "clean"


def test_severity_override_and_fail_on_from_settings(here: Path) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.ckptcheck]\nfail-on = "warning"\n[tool.ckptcheck.severity]\nIDX001 = "info"\nIDX = "warning"\n'
    )
    result = run(here, "scan", "broken", "--format", "json")
    assert json.loads(result.stdout)["findings"][0]["severity"] == "info"
    assert result.returncode == 0
    assert run(here, "scan", "broken", "--fail-on", "info").returncode == 1


def test_settings_inside_the_target_are_not_believed(here: Path) -> None:
    (here / "broken/ckptcheck.toml").write_text('rules = ["evil"]\n[ignore]\nIDX001 = "trust me"\n')
    (here / "broken/evil").mkdir()
    (here / "broken/evil/evi001_x.py").write_text("raise SystemExit('owned')")
    for target, cwd in (("broken", here), (".", here / "broken")):
        assert run(cwd, "scan", target).returncode == 1


def test_baseline(here: Path) -> None:
    written = run(here, "scan", "broken", "--write-baseline", "known.json")
    assert (written.returncode, written.stderr) == (0, "1 finding written to known.json\n")
    again = run(here, "scan", "broken", "--baseline", "known.json")
    assert again.returncode == 0
    assert "1 known finding in the baseline" in again.stdout
    (here / "broken/model-00003-of-00003.safetensors").unlink()
    new = json.loads(run(here, "scan", "broken", "--baseline", "known.json", "--format", "json").stdout)
    assert [finding["message"][:32] for finding in new["findings"]] == ["model-00003-of-00003.safetensors"]
    assert new["known"] == 1
    for text, why in {
        "[]": "it has no schema 'ckptcheck-baseline/1'",
        '{"schema": "other/2", "findings": []}': "its schema is 'other/2', not 'ckptcheck-baseline/1'",
        '{"schema": "ckptcheck-baseline/1"}': "its findings are no list of objects with code, file, key and message",
    }.items():
        (here / "known.json").write_text(text)
        refused = run(here, "scan", "broken", "--baseline", "known.json")
        assert f"known.json is not a baseline of ckptcheck: {why}\n" in refused.stderr
        assert refused.returncode == 2


def test_a_rule_of_ones_own(here: Path) -> None:
    (here / "mine").mkdir()
    rule = here / "mine/bob001_other_name.py"
    rule.write_text(RULE.format(body='yield Problem("it is not called Bob", file="config.json")'))
    result = run(here, "scan", "sound", "--rules", "mine")
    assert result.returncode == 0
    assert "warning BOB001 other-name\n          config.json\n          it is not called Bob\n" in result.stdout
    assert "Every model is called Bob." in run(here, "rule", "BOB001", "--rules", "mine").stdout
    assert "BOB001" in run(here, "rules", "--rules", "mine").stdout
    (here / "ckptcheck.toml").write_text('rules = ["mine"]')
    assert "BOB001" in run(here, "scan", "sound", "--config", "ckptcheck.toml").stdout
    found = run(here, "scan", "sound")
    assert found.returncode == 2
    assert "a settings file runs code only where --config names it" in found.stderr


def test_a_rule_that_crashes_makes_the_run_incomplete_and_the_others_run(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text(RULE.format(body='yield Problem("first")\n    1 / 0'))
    result = run(here, "scan", "broken", "--rules", "mine", "--format", "json")
    assert result.returncode == 2
    report = json.loads(result.stdout)
    assert report["verdict"] == "incomplete"
    assert report["crashed"] == [
        {"code": "BOB001", "error": "ZeroDivisionError: division by zero (bob001_other_name.py, line 12)"}
    ]
    assert [finding["code"] for finding in report["findings"]] == ["IDX001", "BOB001"]
    assert len(report["passed"]) > 20
    assert "could not check BOB001: ZeroDivisionError" in run(here, "scan", "broken", "--rules", "mine").stdout


def test_a_rule_file_that_cannot_be_loaded(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text("import nothing_of_this_name")
    result = run(here, "scan", "sound", "--rules", "mine")
    assert result.returncode == 2
    assert "cannot be loaded: ModuleNotFoundError" in result.stderr


def test_fix_and_diff(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    before = index.read_text(encoding="utf-8")
    index.write_text(before.replace('"total_size": 8032', '"total_size": 1'))
    shown = run(here, "scan", "sound", "--diff")
    assert shown.returncode == 1
    assert '-    "total_size": 1\n+    "total_size": 8032\n' in shown.stdout
    assert index.read_text(encoding="utf-8") != before
    fixed = run(here, "scan", "sound", "--fix")
    assert fixed.returncode == 0
    assert "✓ clean" in fixed.stdout
    assert fixed.stderr == (
        "sound: corrected metadata.total_size in model.safetensors.index.json; the old file is model.safetensors.index.json.orig\n"
    )
    assert json.loads(index.read_text(encoding="utf-8")) == json.loads(before)
    assert '"total_size": 1\n' in Path(f"{index}.orig").read_text(encoding="utf-8")
    assert run(here, "scan", "sound", "--diff").returncode == 0


def test_the_diff_shows_what_a_terminal_would_hide(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    document = json.loads(index.read_text(encoding="utf-8"))
    document["metadata"] = {"total_size": 1, "note": "\u202etxt\x9b31m ##[error]x"}
    index.write_text(json.dumps(document, indent="\t", ensure_ascii=False), encoding="utf-8")
    shown = run(here, "scan", "sound", "--diff").stdout
    assert '-\t\t"total_size": 1' in shown
    assert r"\u202etxt\x9b31m # #[error]x" in shown
    assert not {"\u202e", "\x9b"} & set(shown)


def test_fix_refuses_where_a_new_index_would_hide_a_loss(here: Path) -> None:
    result = run(here, "scan", "broken", "--fix")
    assert result.returncode == 1
    assert (
        result.stderr
        == "broken: the index was not repaired: model-00002-of-00003.safetensors is missing or unreadable\n"
    )
    assert not list((here / "broken").glob("*.orig"))


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (["--select", "VAL001,CFG002", "--headers-only"], 2, "--headers-only"),
        (["--select", "VAL,CFG002", "--headers-only"], 0, "--headers-only"),
    ],
)
def test_what_was_named_and_could_not_run_is_not_clean(here: Path, flags: list[str], code: int, reason: str) -> None:
    """A family leaves room for rules that cannot run; a rule by its name does not."""
    result = run(here, "scan", "sound", *flags)
    assert result.returncode == code, result.stdout
    assert reason in result.stdout


def test_a_base_that_cannot_be_read_is_not_passed_over(here: Path) -> None:
    adapter = Path(__file__).parents[2] / "fixtures/checkpoints/tiny-lora"
    result = run(here, "scan", str(adapter), "--base", "nowhere", "--select", "ADP001")
    assert result.returncode == 2
    assert "could not check ADP005, ADP009: the base model cannot be read: nowhere does not exist" in result.stdout
