"""The index of rules in a wheel says what the files of the rules say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_index, rule_loader
from tests.paths import ROOT


def test_rules_are_the_same_with_and_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "rules"
    shutil.copytree(ROOT / "rules", folder)
    monkeypatch.setattr(rule_loader, "builtin_rule_folder", lambda: folder)

    def told() -> list[tuple[object, ...]]:
        return [
            (rule.code, rule.name, rule.severity, rule.on, rule.when is None, rule.explanation, rule.path)
            for rule in rule_loader.load_rules()
        ]

    assert rule_index.read_index(folder) is None
    before = told()
    (folder / rule_index.INDEX).write_text(rule_index.build_index(folder), encoding="utf-8")
    assert len(rule_index.read_index(folder) or ()) == len(before)
    assert told() == before


HEAD = "from ckptcheck import rule\n\n\n"
CHECK = "def check(evidence):\n    yield from ()\n"


@pytest.mark.parametrize(
    "text",
    [
        f'{HEAD}@rule("ABC001", "odd", severity="info")\n{CHECK}',
        '"""A page that does not end.\n',
        f'{HEAD}@rule("ABC001", "odd", severity="info")\ndef check(evidence):\n    """Yield nothing."""\n',
        f'"""A page."""\n{HEAD}@rule("ABC001", "odd", severity="info", when=bool, on="index")\n{CHECK}',
        f'"""A page."""\n{HEAD}@rule("ABC001", "odd", severity="info", when=lambda it: it == (1,), on = "index")\n{CHECK}',
        f"""\"\"\"A page.\"\"\"\n{HEAD}@rule("ABC001", "odd", severity="info", on='index')\n{CHECK}""",
        f'"""A page."""\n{HEAD}@rule("ABC001", "odd", on="index", severity="info")\n{CHECK}',
    ],
    ids=[
        "no docstring",
        "docstring without an end",
        "docstring of the check alone",
        "on after when",
        "on after a lambda",
        "other quotes",
        "on first",
    ],
)
def test_a_file_that_is_written_otherwise_is_not_described(text: str, tmp_path: Path) -> None:
    (tmp_path / "abc001_odd.py").write_text(text, encoding="utf-8")
    assert rule_index.describe_rule(tmp_path, tmp_path / "abc001_odd.py") is None


@pytest.mark.parametrize(
    ("arguments", "on", "has_condition"),
    [
        ("", "checkpoint", False),
        (', on="index"', "index", False),
        (", when=lambda ckpt: ckpt.on == 3", "checkpoint", True),
        (',\n    on="index",\n    when=lambda ckpt: (ckpt.config or {}) != {},\n', "index", True),
    ],
)
def test_what_the_decorator_says_is_described(arguments: str, on: str, has_condition: bool, tmp_path: Path) -> None:
    path = tmp_path / "abc001_odd.py"
    path.write_text(
        f'"""A page."""\n{HEAD}@rule("ABC001", "odd", severity="info"{arguments})\n{CHECK}', encoding="utf-8"
    )
    entry = rule_index.describe_rule(tmp_path, path)
    assert entry is not None
    assert (entry.code, entry.name, entry.severity, entry.page) == ("ABC001", "odd", "info", "A page.")
    assert (entry.on, entry.has_condition) == (on, has_condition)
    loaded = rule_loader.load_rule_file(path)
    assert (loaded.on, loaded.when is not None) == (on, has_condition)


def test_a_rule_that_cannot_be_described_is_loaded_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'{HEAD}@rule("ABC001", "odd", severity="info", when=bool, on="index")\n{CHECK}'
    (tmp_path / "abc001_odd.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(rule_loader, "builtin_rule_folder", lambda: tmp_path)
    (rule,) = rule_loader.load_rules()
    assert (rule.code, rule.on, rule.when, rule.explanation) == ("ABC001", "index", bool, "")


@pytest.mark.parametrize(
    ("condition", "is_indexed"),
    [
        ("lambda ckpt: bool(ckpt)", True),
        ("lambda ckpt: any(one for one in ckpt if (found := one))", True),
        ("lambda ckpt: bool(ckpt) and rule is not None", False),
        ("bool", True),
        ("rule", False),
    ],
)
def test_the_index_answers_what_needs_nothing_of_the_file(
    condition: str, is_indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'"""A page."""\n{HEAD}raise OSError\n\n\n@rule("ABC001", "odd", severity="info", when={condition})\n{CHECK}'
    (tmp_path / "abc001_odd.py").write_text(text, encoding="utf-8")
    (tmp_path / rule_index.INDEX).write_text(rule_index.build_index(tmp_path), encoding="utf-8")
    monkeypatch.setattr(rule_loader, "builtin_rule_folder", lambda: tmp_path)
    (rule,) = rule_loader.load_rules()
    assert rule.when is not None
    if is_indexed:
        assert (rule.when([]), rule.when([3])) == (False, True)
    else:
        with pytest.raises(CkptcheckError, match="cannot be loaded: OSError"):
            rule.when([3])


def test_a_file_that_cannot_be_described_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "abc001_odd.py").write_text('"""A page."""\nfrom ckptcheck import rule\n', encoding="utf-8")
    with pytest.raises(ValueError, match="abc001_odd"):
        rule_index.build_index(tmp_path)
