"""What users and their scripts rely on stays: rule codes, commands, options, formats, and the keys of reports.

`tests/data/public_interface.json` lists them. Something new needs no entry to pass; to remove a thing on purpose, take its line
out of the list, and say so in CHANGELOG.md. `python -m tests.test_public_interface` writes the list anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ckptcheck.cli.app import build_app
from ckptcheck.linter.rule_loader import load_rules
from tests.paths import DATA

LIST = DATA / "public_interface.json"


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its words."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, f"{path} {name}".strip())
    else:
        yield path, command


def _keys(schema: Any) -> Iterator[str]:
    """Yield the names of all properties in a JSON schema, however deep, and the values of its enumerations."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (f"={value}" for value in schema.get("enum", []))
        for inner in schema.values():
            yield from _keys(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _keys(inner)


def collect_interface() -> dict[str, Any]:
    """Return rule codes with names, options with their choices by command, and the keys of the JSON report."""
    options: dict[str, list[str]] = {}
    for path, command in _commands(build_app()):
        names = set()
        for parameter in command.params:
            choices = getattr(parameter.type, "choices", None) or ()
            for name in (*parameter.opts, *parameter.secondary_opts):
                names.add(name)
                names |= {f"{name}={getattr(choice, 'value', choice)}" for choice in choices}
        options[path] = sorted(names)
    schema = json.loads((files("ckptcheck.reporters") / "report.schema.json").read_text(encoding="utf-8"))
    return {
        "rules": {rule.code: rule.name for rule in sorted(load_rules(), key=lambda rule: rule.code)},
        "options": options,
        "report": sorted(set(_keys(schema))),
    }


def test_nothing_public_has_disappeared() -> None:
    listed, now = json.loads(LIST.read_text(encoding="utf-8")), collect_interface()
    assert listed["rules"].items() <= now["rules"].items()
    assert set(listed["report"]) <= set(now["report"])
    missing = {
        command: sorted(lost)
        for command, options in listed["options"].items()
        if (lost := set(options) - set(now["options"].get(command, [])))
    }
    assert not missing


if __name__ == "__main__":
    LIST.write_text(json.dumps(collect_interface(), indent=1) + "\n", encoding="utf-8")
