"""docs/guides.md is written from a table of commands, rules and tests, each of which is there."""

from __future__ import annotations

import re

import pytest

from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.runtime.environments.recipe import find_recipe
from ckptcheck.live.runtime.environments.store import find_environment
from tests.guides import PAGE, Row, check_command, read_table, render, render_row
from tests.paths import ROOT

ROWS = [row for guide in read_table() for row in guide.row]
FILES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tests.guides"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.asks[:40])
def test_a_row_names_tests_of_its_command(row: Row) -> None:
    """Each is there, and without a rule one lies in a file that names the command; without both there is a reason."""
    texts = []
    for name in row.tests:
        found = [text for path, text in FILES.items() if path.name == name or f"def {name}(" in text]
        assert found, name
        texts += found
    verbs = {check_command(command).removeprefix("parity ") for command in row.run}
    assert row.rules or not (texts and verbs) or any(verb in text for verb in verbs for text in texts)
    assert row.tests or row.rules or row.why or row.lacks


def test_words_beside_the_commands_say_nothing_that_is_taken_from_the_program() -> None:
    for row in ROWS:
        assert not re.search(r"\b(error|warning|info)s?\b|\bno environment\b|`[^`]* --", f"{row.says} {row.why}"), row


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (Row("x", ["parity probe MODEL --only stale,prefix-cache"]), "there is no probe stale,prefix-cache"),
        (Row("x", ["watch job.yaml"]), "no command"),
        (Row("x", ["scan MODEL --bogus"]), "--bogus"),
        (Row("x", ["scan MODEL --set bogus=1"]), "no setting"),
        (Row("x", ["diff A B"], rules=["MEG018"]), "none of"),
        (Row("x", lacks=["trl-cpu"]), "is in an environment"),
        (Row("x"), "neither a command nor a reason"),
    ],
)
def test_what_is_not_so_is_not_written(row: Row, told: str) -> None:
    with pytest.raises(Exception, match=re.escape(told)):
        render_row(row)


@pytest.mark.engine
def test_trl_has_no_class_with_a_value_head() -> None:
    environment = find_environment(find_recipe("trl-cpu"))
    if not environment.python.exists():
        pytest.skip("trl-cpu is not installed")
    (folder,) = environment.python.parent.parent.glob("lib/python*/site-packages/trl")
    assert not [path for path in folder.rglob("*.py") if "ValueHead" in path.read_text(encoding="utf-8")]


def test_the_table_of_experiments_has_every_experiment() -> None:
    page = (ROOT / "docs/kl-grows.md").read_text(encoding="utf-8")
    table = page.partition("| experiment | what it changes | needs |\n")[2].partition("\n\n")[0]
    shown = [name.strip() for row in table.splitlines()[1:] for name in row.split("|")[1].split(",")]
    assert sorted(shown) == sorted(experiment.name for experiment in EXPERIMENTS)
