"""SARIF: valid by the schema of OASIS, and of the shape that GitHub code scanning takes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import pytest
from jsonschema import Draft4Validator

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.reporters import render
from tests.factories.sample_reports import (
    CLEAN,
    CRASHED,
    FOUND,
    LEFT_OVER,
    MISSING,
    PAGE,
    RARE,
    SARIF,
    SARIF_FILE,
    TIED,
    UNOPENED,
    groups,
    location_uri,
    render_sarif_location,
    sarif_run,
)


def test_the_sarif_schema_is_the_one_of_oasis() -> None:
    assert SARIF.schema["id"].startswith("https://docs.oasis-open.org/sarif/sarif/v2.1.0/")
    assert SARIF.schema["title"] == "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"
    digest = hashlib.sha256(SARIF_FILE.read_bytes()).hexdigest()
    assert digest == "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
    Draft4Validator.check_schema(SARIF.schema)


@groups
def test_sarif_is_sarif(reports: list[Report]) -> None:
    run = sarif_run(reports)
    assert len(run["results"]) == sum(len(report.findings) for report in reports)
    assert run["invocations"][0]["executionSuccessful"] is not any(report.verdict == "incomplete" for report in reports)
    notes = [len(report.skipped) + len(report.crashed) + bool(report.error) for report in reports]
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == sum(notes)


def test_sarif_rules() -> None:
    rules = sarif_run([FOUND, CRASHED])["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["IDX001", "CFG002", "NUM003"]
    assert sarif_run([CLEAN])["tool"]["driver"]["rules"] == [], "a rule that found nothing is not described"
    assert rules[0] == {
        "id": "IDX001",
        "name": "MissingShard",
        "shortDescription": {"text": "The index names an absent shard."},
        "fullDescription": {"text": "Every file of the weight map."},
        "help": {"text": "The index names an absent shard. See ckptcheck rule IDX001.", "markdown": PAGE},
        "defaultConfiguration": {"level": "error"},
    }
    assert [rule["defaultConfiguration"]["level"] for rule in rules[1:3]] == ["warning", "note"]
    assert rules[1]["name"] == "TiedEmbeddingsLie"
    for rule in rules:
        texts = [rule["shortDescription"]["text"], rule["fullDescription"]["text"]]
        assert all(0 < len(text) <= 1024 for text in texts)


def test_sarif_results() -> None:
    results = sarif_run([FOUND])["results"]
    assert [result["level"] for result in results] == ["error", "error", "warning", "note"]
    assert results[0]["message"]["text"] == "weight_map: a.safetensors is missing. Hint: fetch it."
    assert results[0]["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "runs/b/index.json", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 1},
            },
            "logicalLocations": [{"fullyQualifiedName": "weight_map"}],
        }
    ]
    assert location_uri(results[3]["locations"][0]) == "runs/b"


def test_sarif_fingerprints_outlive_a_new_message_and_tell_findings_apart() -> None:
    def prints(*findings: Finding) -> list[str]:
        results = sarif_run([Report("runs/a", findings=findings)])["results"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    assert prints(MISSING) == ["6decd559a0ec09ac:1"], "a new fingerprint closes and opens every alert of every user"
    assert prints(LEFT_OVER) == prints(MISSING)
    assert prints(MISSING, TIED)[0] == prints(MISSING)[0]
    assert len(set(prints(MISSING, LEFT_OVER, TIED, RARE))) == 4


def test_sarif_notifications() -> None:
    notes = sarif_run([FOUND, CRASHED, UNOPENED])["invocations"][0]["toolExecutionNotifications"]
    assert [(note["level"], note["message"]["text"], location_uri(note["locations"][0])) for note in notes] == [
        ("note", "ZZZ009 skipped runs/b: ignored", "runs/b"),
        ("error", "IDX001 could not check runs/c: KeyError: 'x'", "runs/c"),
        ("error", "ADP004 could not check runs/c: denied", "runs/c"),
        ("error", "runs/d could not be checked: runs/d does not exist", "runs/d"),
    ]


def test_sarif_messages_hold_no_placeholder_and_no_link() -> None:
    finding = Finding("IDX001", "n", "error", "[click](https://evil.example) {0}")
    (result,) = sarif_run([Report("a", findings=(finding,))])["results"]
    assert result["message"]["text"] == "[click] (https://evil.example) {{0}}."


def test_sarif_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = {"uriBaseId": "%SRCROOT%"}
    (tmp_path / "x.safetensors").touch()
    assert render_sarif_location("x.safetensors", "x.safetensors") == {"uri": "x.safetensors", **inside}
    assert render_sarif_location("x.safetensors", "config.json") == {"uri": "config.json", **inside}
    assert render_sarif_location(".", None) == {"uri": ".", **inside}
    assert render_sarif_location("./a/../b/", "c.json") == {"uri": "b/c.json", **inside}
    assert render_sarif_location(str(tmp_path / "a"), "c.json") == {"uri": "a/c.json", **inside}
    assert render_sarif_location("größe 100%:#?", "[1].json") == {
        "uri": "gr%C3%B6%C3%9Fe%20100%25%3A%23%3F/%5B1%5D.json",
        **inside,
    }
    assert render_sarif_location("a", "b\udcff.json") == {"uri": "a/b%FF.json", **inside}
    assert render_sarif_location("/elsewhere/a b", "c.json") == {"uri": "file:///elsewhere/a%20b/c.json"}
    assert render_sarif_location("a", "../../../../../../../../etc/passwd") == {"uri": "file:///etc/passwd"}
    assert render_sarif_location("hf://org/name", "c.json") == {
        "uri": "org/name/blob/main/c.json",
        "uriBaseId": "HUB",
        "description": {"text": "c.json of hf://org/name"},
    }
    assert render_sarif_location("hf://org/name@refs/pr/1", None)["uri"] == "org/name/tree/refs%2Fpr%2F1"
    assert render_sarif_location("hf://org/name", "../../../x")["uri"] == "org/name/blob/main/x"
    assert render_sarif_location("hf://", None)["uri"] == "tree/main", "code scanning refuses an empty one"
    (tmp_path / "first").mkdir()
    (tmp_path / "first/a.safetensors").touch()
    assert render_sarif_location("first ↔ second", "a.safetensors")["uri"] == "first/a.safetensors"
    assert render_sarif_location("first ↔ second", "b.safetensors")["uri"] == "second/b.safetensors"
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path / "sub")
    assert render_sarif_location("a", "c.json") == {"uri": "sub/a/c.json", **inside}


def test_sarif_has_a_page_once(tmp_path: Path) -> None:
    from ckptcheck.linter.rule_loader import load_rules

    (rule,) = [rule for rule in load_rules() if rule.code == "IDX001"]
    text = render("sarif", [Report("a", findings=(MISSING, MISSING)), Report("b", findings=(MISSING,))], [rule])
    assert text.count("## Why it matters") == 1


def test_sarif_locations_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer joins the base and the location, and finds the file, whatever the folder is called."""
    folder = tmp_path / "50% größe #1"
    (folder / "model").mkdir(parents=True)
    (folder / "model/index.json").touch()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    finding = Finding("IDX001", "n", "error", "x", file="index.json")
    run = sarif_run([Report("model", findings=(finding,)), Report("hf://org/name@v 1", findings=(finding,))])
    urls = []
    for result in run["results"]:
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        urls.append(urljoin(run["originalUriBaseIds"][artifact["uriBaseId"]]["uri"], artifact["uri"]))
    assert url2pathname(urlsplit(urls[0]).path) == str(folder / "model/index.json")
    assert urls[1] == "https://huggingface.co/org/name/blob/v%201/index.json"
