"""Settings: what is accepted, what is refused with a sentence, and where they are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader, settings
from ckptcheck.linter.selection import match_rules, select_rules

RULES = rule_loader.load_rules()


def write(folder: Path, text: str, name: str = "ckptcheck.toml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_everything_that_can_be_written_down(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'select = ["IDX", "CFG003"]\nfail-on = "info"\nrules = ["mine"]\n'
        '[ignore]\nIDX007 = "legacy"\n[severity]\nIDX = "warning"\nIDX001 = "error"\n',
    )
    found = settings.load_settings(path)
    assert found.select == ("IDX", "CFG003")
    assert found.fail_on == "info"
    assert found.rule_folders == (tmp_path / "mine",)
    assert found.ignored_codes(RULES) == {"IDX007": "legacy"}
    severities = found.severity_codes(RULES)
    assert severities["IDX001"] == "error"
    assert severities["IDX002"] == "warning"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("selct = []", "unknown setting 'selct'; did you mean select?"),
        ("select = 'IDX'", "select is not a list of strings"),
        ("rules = ['a', 3]", "rules is not a list of strings"),
        ("ignore = 'IDX'", "ignore is not a table of strings"),
        ("[severity]\nIDX001 = 1", "severity is not a table of strings"),
        ("fail-on = 1", "fail-on is not a string"),
        ('ignore = ["IDX001"]', "every ignored rule needs a reason"),
        ('[ignore]\nIDX001 = ""', "ignore.IDX001 gives no reason"),
        ('[severity]\nIDX001 = "fatal"', "severity.IDX001 is 'fatal', not one of error, warning, info"),
        ('fail-on = "always"', "fail-on is 'always', not one of error, warning, info, never"),
        ("select = [", "is not TOML"),
    ],
)
def test_what_is_malformed_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(CkptcheckError) as refusal:
        settings.load_settings(write(tmp_path, text))
    assert sentence in refusal.value.message


def test_an_unknown_code_is_an_error_with_a_near_match(tmp_path: Path) -> None:
    found = settings.load_settings(write(tmp_path, '[ignore]\nIDX01 = "x"\nIXD001 = "y"'))
    with pytest.raises(CkptcheckError, match="no rule has the code 'IXD001'; did you mean IDX001"):
        found.ignored_codes(RULES)


def test_the_nearest_file_upwards_counts_and_pyproject_only_with_our_table(tmp_path: Path) -> None:
    write(tmp_path, 'fail-on = "info"')
    inner = tmp_path / "a"
    write(inner, "[project]\nname = 'x'\n", "pyproject.toml")
    assert settings.find_settings(inner).fail_on == "info"
    write(inner, "[tool.ckptcheck]\nfail-on = 'never'\n", "pyproject.toml")
    assert settings.find_settings(inner).fail_on == "never"
    assert settings.find_settings(inner).file == inner / "pyproject.toml"


def test_where_the_working_directory_is_that_of_a_target_nothing_is_looked_for(tmp_path: Path) -> None:
    above = write(tmp_path, 'fail-on = "info"')
    target = tmp_path / "ckpt"
    (target / "deeper").mkdir(parents=True)
    for start in (target, target / "deeper"):
        assert settings.find_settings(start, [target]) == settings.Settings(passed_over=above)
    assert settings.find_settings(target).fail_on == "info"
    assert settings.find_settings(tmp_path, [target]).fail_on == "info", "a project whose checkpoints lie below it"
    own = write(target, "[tool.ckptcheck]\nfail-on = 'never'\n", "pyproject.toml")
    assert settings.find_settings(target, [target]).passed_over == own
    assert settings.find_settings(target, [tmp_path / "other"]).fail_on == "never"
    write(target, "[tool.ckptcheck", "pyproject.toml")
    assert settings.find_settings(target, [target]).passed_over == above, "what is malformed there stops no check"


def test_a_link_to_a_target_is_the_target(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 'fail-on = "never"')
    (tmp_path / "latest").symlink_to("ckpt")
    assert settings.find_settings(tmp_path / "ckpt", [tmp_path / "latest"]).file is None
    assert settings.find_settings(tmp_path / "latest", [tmp_path / "ckpt"]).file is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users as on Linux and macOS")
def test_a_file_of_another_user_where_everybody_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody leaves settings in /tmp; whoever works below it would run their rules."""
    path = write(tmp_path, 'rules = ["evil"]')
    owner = 4711 if os.getuid() == 0 else os.getuid()
    if os.getuid() == 0:
        os.chown(path, owner, -1)
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert settings.find_settings(tmp_path).file == path, "a colleague's file in a folder of the team"
    tmp_path.chmod(0o1777)
    with pytest.raises(CkptcheckError, match="belongs to another user, in a folder that everybody may write to"):
        settings.find_settings(tmp_path / "work")
    assert settings.load_settings(path).file == path
    monkeypatch.setattr(os, "getuid", lambda: owner)
    assert settings.find_settings(tmp_path).file == path


@pytest.mark.parametrize("tool", ["tool = 5", "tool = ['ckptcheck']", "[tool]\nckptcheck = 5"])
def test_a_project_file_whose_tools_are_none(tool: str, tmp_path: Path) -> None:
    write(tmp_path, tool, "pyproject.toml")
    if "ckptcheck = 5" in tool:
        with pytest.raises(CkptcheckError, match="not a table"):
            settings.find_settings(tmp_path)
    else:
        assert settings.find_settings(tmp_path).file is None
        assert settings.load_settings(tmp_path / "pyproject.toml").select == ()


def test_selection_by_code_prefix_and_name() -> None:
    assert [rule.code for rule in match_rules(RULES, "idx001")] == ["IDX001"]
    assert [rule.code for rule in match_rules(RULES, "missing-shard")] == ["IDX001"]
    assert {rule.code[:3] for rule in select_rules(RULES, ["IDX", "MOE004"])} == {"IDX", "MOE"}
    assert select_rules(RULES, []) == RULES
    with pytest.raises(CkptcheckError, match="did you mean"):
        match_rules(RULES, "IDX0001")
    with pytest.raises(CkptcheckError):
        match_rules(RULES, "")
