"""The page: one file that nothing in a checkpoint can bend, the same bytes for the same report."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ckptcheck.errors import EvidenceError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.late_import import load_function
from ckptcheck.linter.pictures import Curves, HeatMap, NoPicture, Picture
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Skip
from ckptcheck.reporters import evidence_pictures, render
from ckptcheck.reporters.evidence_pictures import PICTURES as PICTURES_OF
from ckptcheck.reporters.html import page as page_module
from tests.factories.localize_cases import build_localization
from tests.factories.pictures import DRAWN, HOSTILE, MODULES, make_heat_map
from tests.factories.sample_reports import RULES, groups
from tests.factories.verb_reports import report_every_verb

UPLOT = Path(page_module.__file__).parent / "uplot"


class Parts(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.CDATA_CONTENT_ELEMENTS:
            self.raw.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in self.CDATA_CONTENT_ELEMENTS:
            self.raw[-1] += data

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


@groups
def test_a_page_is_one_file_that_reaches_nothing(reports: list[Report]) -> None:
    page = render("html", [*reports, DRAWN], RULES)
    parts = Parts(page)
    assert page == render("html", [*reports, DRAWN], RULES)
    policy = next(tag["content"] for tag in parts.find("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    style, data, script = parts.raw
    assert data.startswith("{")
    for text in (style, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [tag for tag, _ in parts.tags if tag in ("img", "link", "iframe", "object", "embed", "form", "base")]
    assert not [name for _, tag in parts.tags for name in tag if name.startswith("on") or name in ("src", "style")]
    assert all((tag.get("href") or "").startswith("#") for tag in parts.find("a"))


def test_a_hostile_name_is_text() -> None:
    page = render("html", [DRAWN], RULES)
    assert "<img" not in page
    assert "\u202e" not in page
    assert len(Parts(page).find("script")) == 2
    assert "</script><img onerror" in json.dumps(data_of(page))


def test_ids_are_unique_and_every_link_leads_somewhere() -> None:
    parts = Parts(render("html", [DRAWN, DRAWN], RULES))
    ids = [tag["id"] for _, tag in parts.tags if "id" in tag]
    assert len(ids) == len(set(ids))
    assert {(tag["href"] or "")[1:] for tag in parts.find("a")} <= set(ids)


def test_only_pages_with_curves_carry_the_library_that_draws_them() -> None:
    curves = next(picture for picture in DRAWN.pictures if isinstance(picture, Curves))
    for picture, has_library in ((curves, True), (make_heat_map(), False)):
        style, _, script = Parts(render("html", [structs.replace(DRAWN, pictures=(picture,))], RULES)).raw
        assert ("The MIT License (MIT)" in script) is has_library
        assert (UPLOT / "uPlot.iife.min.js").read_text(encoding="utf-8").strip() in script or not has_library
        assert (".uplot canvas" in style) is has_library


def test_the_library_is_as_its_authors_published_it() -> None:
    note = json.loads((UPLOT / "uplot.json").read_text(encoding="utf-8"))
    files = {path.name: path.read_bytes() for path in UPLOT.iterdir() if path.name != "uplot.json"}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == note["sha256"]
    assert f"(v{note['version']})".encode() in files["uPlot.iife.min.js"]


def test_names_become_templates_and_numbers() -> None:
    data = data_of(render("html", [structs.replace(DRAWN, pictures=(make_heat_map(),))], RULES))
    (picture,) = data["reports"][0]["pictures"]
    template = data["templates"][picture["cells"][0]["n"]]
    assert "6".join(template) == f"model.layers.6.{MODULES[0]}.weight"
    assert picture["cells"][3]["members"]["5"]["l"] == 4
    assert HOSTILE.replace("\u202e", "\\u202e") in picture["rows"]


def test_ten_thousand_tensors_fit_into_half_a_megabyte() -> None:
    picture = make_heat_map(layers=40, experts=250)
    assert len(render("html", [structs.replace(DRAWN, pictures=(picture,))], RULES)) < 500_000


EVIDENCE = build_localization({})


def draw_with(monkeypatch: pytest.MonkeyPatch, *functions: Any) -> tuple[Picture, ...]:
    """Draw evidence with these functions in place of those of its kind."""
    named = {f"Title {number}": str(number) for number in range(len(functions))}
    monkeypatch.setitem(PICTURES_OF, EVIDENCE.kind, named)
    monkeypatch.setattr(evidence_pictures, "load_function", lambda path: functions[int(path)])
    return evidence_pictures.draw_pictures(EVIDENCE)


def test_every_kind_of_the_table_is_drawn_by_a_function_that_is_there() -> None:
    for titles in PICTURES_OF.values():
        for path in titles.values():
            assert callable(load_function(path)), path


def test_a_function_draws_one_picture_several_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_heat_map()
    drawn = draw_with(monkeypatch, lambda *_: one, lambda *_: None, lambda *_: [one, None, one])
    assert drawn == (one, one, one)


@pytest.mark.parametrize(
    "error", [Skip("not read"), EvidenceError("not read"), OSError("not read"), ValueError("not read")]
)
def test_a_picture_that_cannot_be_made_says_why(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> HeatMap:
        raise error

    broken, sound = draw_with(monkeypatch, fail, lambda *_: make_heat_map())
    assert isinstance(broken, NoPicture)
    assert broken.title == "Title 0"
    assert "not read" in broken.caption
    assert isinstance(sound, HeatMap)


def test_a_notebook_shows_pictures_in_a_frame_that_reaches_nothing() -> None:
    text = DRAWN._repr_html_()
    parts = Parts(text)
    assert "<script" not in text
    (frame,) = parts.find("iframe")
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    inner = Parts(frame["srcdoc"] or "")
    assert any("default-src 'none'" in (tag.get("content") or "") for tag in inner.find("meta"))
    assert "<img" not in text
    assert "<iframe" not in structs.replace(DRAWN, pictures=())._repr_html_()


def test_a_picture_names_rules_on_its_own_evidence(tmp_path: Path) -> None:
    kinds = {rule.code: rule.on for rule in rule_loader.load_rules()}
    named = {
        verb: {code for picture in report.pictures for code in getattr(picture, "codes", ())}
        for verb, report in report_every_verb(tmp_path).items()
    }
    assert {verb: {kinds[code] for code in codes} for verb, codes in named.items() if codes} == {
        "trial": {"refit"},
        "record": {"history"},
        "rollouts": {"rollouts"},
        "matrix": {"matrix"},
        "saves": {"saves"},
    }
