"""JSON, the documented form: it validates, and its schema rejects what is not of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ckptcheck.linter.report import Report
from ckptcheck.reporters import render
from tests.factories.sample_reports import CLEAN, CRASHED, FORM, FOUND, RULES, UNOPENED, groups


@groups
def test_json_is_of_its_schema(reports: list[Report]) -> None:
    form = json.loads(render("json", reports, RULES))
    FORM.validate(form)
    dicts = [report.to_dict() for report in reports]
    assert (form.get("reports") or [form]) == dicts


def test_json_schema_is_a_schema_and_describes_everything() -> None:
    Draft202012Validator.check_schema(FORM.schema)

    def objects(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            yield node
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from objects(child)

    closed = [node for node in objects(FORM.schema) if node.get("additionalProperties") is False]
    assert len(closed) == 8
    for node in closed:
        optional = (
            {"subject", "read", "identity", "consumers", "sections", "error"}
            if "target" in node["properties"]
            else set()
        )
        optional |= {"columns", "rows", "lines"} if "columns" in node["properties"] else set()
        optional |= {"line", "names"} if "hint" in node["properties"] else set()
        assert set(node["properties"]) - set(node["required"]) == optional
        for name, entry in node["properties"].items():
            assert "description" in entry or entry == {"$ref": "#/$defs/code"}, name


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets what is at a path like findings/0/severity."""

    def change(form: dict[str, Any]) -> None:
        *way, last = path.split("/")
        node: Any = form
        for step in way:
            node = node[int(step)] if isinstance(node, list) else node[step]
        node[last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that removes what is at a path."""

    def change(form: dict[str, Any]) -> None:
        *way, last = path.split("/")
        node: Any = form
        for step in way:
            node = node[int(step)] if isinstance(node, list) else node[step]
        del node[last]

    return change


WRONG: dict[str, tuple[Report, Callable[[dict[str, Any]], None]]] = {
    **{f"no {key}": (FOUND, drop(key)) for key in FOUND.to_dict()},
    **{f"no finding's {key}": (FOUND, drop(f"findings/0/{key}")) for key in FOUND.to_dict()["findings"][0]},
    **{f"no number of {key}": (FOUND, drop(f"counts/{key}")) for key in FOUND.to_dict()["counts"]},
    "no reason": (FOUND, drop("skipped/0/reason")),
    "no crash error": (CRASHED, drop("crashed/0/error")),
    "another form": (FOUND, put("schema", "ckptcheck-report/2")),
    "unknown severity": (FOUND, put("findings/0/severity", "fatal")),
    "unknown verdict": (FOUND, put("verdict", "fine")),
    "extra property": (FOUND, put("summary", "a model")),
    "empty subject": (FOUND, put("subject", "")),
    "extra property of a finding": (FOUND, put("findings/0/column", 1)),
    "extra property of a skip": (FOUND, put("skipped/0/line", 1)),
    "extra property of a crash": (CRASHED, put("crashed/0/line", 1)),
    "extra count": (FOUND, put("counts/fatal", 1)),
    "negative count": (FOUND, put("counts/files", -1)),
    "count in words": (FOUND, put("known", "7")),
    "message of null": (FOUND, put("findings/0/message", None)),
    "error of null": (UNOPENED, put("error", None)),
    "clean, with findings": (FOUND, put("verdict", "clean")),
    "clean, with a crash": (CLEAN, put("crashed", [{"code": "IDX001", "error": "KeyError"}])),
    "clean, with an error": (CLEAN, put("error", "it does not exist")),
    "findings, without one": (CLEAN, put("verdict", "findings")),
    "findings, with an error": (FOUND, put("error", "it does not exist")),
    "incomplete, without a reason": (CLEAN, put("verdict", "incomplete")),
}


@pytest.mark.parametrize(("report", "change"), WRONG.values(), ids=WRONG.keys())
def test_json_schema_rejects(report: Report, change: Callable[[dict[str, Any]], None]) -> None:
    form = copy.deepcopy(report.to_dict())
    assert FORM.is_valid(form)
    change(form)
    assert not FORM.is_valid(form)
    assert not FORM.is_valid([CLEAN.to_dict(), form])


def test_json_schema_rejects_a_list_for_one_target() -> None:
    assert not FORM.is_valid([CLEAN.to_dict()])
    assert not FORM.is_valid([])


def test_json_says_what_was_looked_at() -> None:
    assert json.loads(render("json", [CLEAN], RULES))["subject"] == "LlamaForCausalLM · 1 file · 2 tensors"
    assert "subject" not in json.loads(render("json", [UNOPENED], RULES))


def test_json_is_readable_and_encodable() -> None:
    text = render("json", [Report("größe\udc80\x9b\u2028", passed=("IDX001",))], RULES)
    assert '"target": "größe\\udc80\\u009b\\u2028"' in text
    text.encode()
