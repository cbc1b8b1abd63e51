"""``ckptcheck rules`` and ``ckptcheck rule``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.factories.command_line import run


def test_rules_lists_every_rule_and_rule_prints_its_page(here: Path) -> None:
    from ckptcheck.linter import rule_loader

    listed = json.loads(run(here, "rules", "--format", "json").stdout)
    assert [entry["code"] for entry in listed] == [rule.code for rule in rule_loader.load_rules()]
    page = run(here, "rule", "idx001").stdout
    assert page.startswith(
        "# IDX001 missing-shard (error)\n\nA shard is missing that the index names, or that the numbers of the others call for.\n\n"
        "## What it checks\n"
    )


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("foreign-tokenizer", ["JOB041", "TOK014"]),
        ("Foreign Tokenizer", ["JOB041", "TOK014"]),
        ("missing_shard", ["IDX001"]),
        ("cfg003", ["CFG003"]),
    ],
)
def test_a_rule_is_found_by_what_people_write(here: Path, words: str, codes: list[str]) -> None:
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.selection import find_rules

    assert [rule.code for rule in find_rules(load_rules(), words)] == codes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("missing-shrd", "no rule has the code 'missing-shrd'; did you mean missing-shard?"),
        ("CFGG03", "no rule has the code 'CFGG03'; did you mean CFG"),
        ("cfg3", "no rule has the code 'cfg3'; did you mean CFG003?"),
        ("layer", "no rule has the code 'layer'; did you mean duplicate-layer?"),
        ("qqq", "no rule has the code 'qqq'"),
        ("", "no rule has the code ''"),
    ],
)
def test_what_may_be_meant_is_suggested(here: Path, words: str, sentence: str) -> None:
    from ckptcheck.errors import CkptcheckError
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.selection import find_rules

    with pytest.raises(CkptcheckError) as caught:
        find_rules(load_rules(), words)
    assert caught.value.message.startswith(sentence)


def test_a_name_of_two_rules_prints_both_pages(here: Path) -> None:
    for words in (["foreign-tokenizer"], ["foreign", "tokenizer"]):
        page = run(here, "rule", *words).stdout
        assert page.startswith("# JOB041 foreign-tokenizer (warning)\n")
        assert "\n\n# TOK014 foreign-tokenizer (error)\n" in page


def test_a_selection_has_to_be_written_as_it_is(here: Path) -> None:
    """A pipeline that selects CFG03 would run another rule as soon as there is a CFG040."""
    result = run(here, "scan", "sound", "--select", "CFG03")
    assert (result.returncode, "did you mean CFG003?" in result.stderr) == (2, True)
