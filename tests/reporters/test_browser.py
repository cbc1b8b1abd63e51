"""The page in a real browser: no error, no request, and what a reader with a mouse, a keyboard or a screen reader does."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ckptcheck.linter.report import Report
from ckptcheck.reporters.html.page import render_page
from tests.factories.pictures import DRAWN, HOSTILE, MODULES, make_heat_map
from tests.factories.sample_reports import CLEAN, CRASHED, FOUND, MEASURED, RULES
from tests.factories.verb_reports import OUT, report_every_verb

CHROMIUM = os.environ.get("CKPTCHECK_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [
    *(["a Chromium"] if CHROMIUM is None else []),
    *(["playwright"] if importlib.util.find_spec("playwright") is None else []),
]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)} (make browser installs them)"),
    pytest.mark.xdist_group("browser"),
]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LARGE = structs.replace(DRAWN, pictures=(make_heat_map(layers=92, experts=1520),))
"""A report of 140,000 tensors."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with what it complained of and asked for."""

    def __init__(self, browser: Any, folder: Path, reports: list[Report], **options: Any) -> None:
        file = folder / "page.html"
        file.write_text(render_page(reports, RULES), encoding="utf-8")
        self.page = browser.new_page(**options)
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = file.as_uri()
        self.page.goto(self.url)

    def draw_all(self) -> None:
        """Bring every picture near the window."""
        for figure in self.page.locator("figure.picture").all():
            figure.scroll_into_view_if_needed()
            self.page.locator(f"#{figure.get_attribute('id')}[data-drawn]").wait_for()

    def focused(self) -> str:
        return str(self.page.evaluate("document.activeElement.id || document.activeElement.className"))


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Opened]:
    """A report with every kind of picture and a hostile name."""
    one = Opened(chromium, tmp_path, [DRAWN])
    yield one
    assert one.trouble == []
    assert one.requests == [one.url]
    one.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_error_no_request_and_no_sideways_scrolling(chromium: Any, tmp_path: Path, width: int, scheme: str) -> None:
    reports = [DRAWN, CLEAN, FOUND, CRASHED, MEASURED]
    one = Opened(chromium, tmp_path, reports, viewport={"width": width, "height": 800}, color_scheme=scheme)
    with_pictures = one.page.query_selector_all("article figure.picture")
    for figure in with_pictures:
        figure.scroll_into_view_if_needed()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.page.evaluate("document.documentElement.dataset.scheme") == scheme
    assert (one.trouble, one.requests) == ([], [one.url])
    assert len(with_pictures) == len(DRAWN.pictures)
    one.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(chromium: Any, tmp_path: Path, scheme: str) -> None:
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs axe-core-python (make browser installs it)")
    one = Opened(chromium, tmp_path, [DRAWN, FOUND, MEASURED, DRAWN], color_scheme=scheme, bypass_csp=True)
    one.draw_all()
    for summary in one.page.query_selector_all("details:not([open]) > summary"):
        summary.click()
    one.page.add_script_tag(content=Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    result = one.page.evaluate("axe.run()")
    described = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in result["violations"]]
    assert described == []
    one.page.close()


def test_pointing_at_a_cell_names_the_tensor(opened: Opened) -> None:
    canvas = opened.page.locator("#r1-p0 .stage canvas").first
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 6 * cell_width(opened) + 4, "y": 8})
    tip = opened.page.locator("#tip")
    assert f"model.layers.6.{MODULES[0]}.weight" in tip.inner_text()
    assert "1 finding: VAL006" in tip.inner_text()
    opened.page.mouse.move(0, 0)
    assert tip.is_hidden()


def list_clipped_texts(page: Any) -> list[str]:
    """Return the parts of the bar and the labels beside pictures that do not fit where they stand."""
    found = page.evaluate(
        "[...document.querySelectorAll('.bar nav, .rows div')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.trim())"
    )
    return list(map(str, found))


def cell_width(opened: Opened) -> float:
    return float(opened.page.evaluate("document.querySelector('#r1-p0 .stage canvas').clientWidth / 24"))


def test_a_finding_leads_into_the_picture_and_back(opened: Opened) -> None:
    opened.page.locator("#r1-f1 .shows a").first.click()
    assert opened.focused() == "stage"
    readout = opened.page.locator("#r1-p0 > .readout").inner_text()
    assert f"model.layers.6.{MODULES[0]}.weight" in readout
    opened.page.keyboard.press("Enter")
    assert opened.focused() == "r1-f1"


def test_a_click_opens_the_experts_and_a_finding_leads_there(opened: Opened) -> None:
    opened.page.locator("#r1-f2 .shows a").first.click()
    opened.page.keyboard.press("Enter")
    inner = opened.page.locator("#r1-p0 .members")
    assert "4 experts" in inner.locator("h4").inner_text()
    assert "model.layers.3.mlp.experts.2.up_proj.weight" in inner.locator(".readout").inner_text()
    opened.page.keyboard.press("Enter")
    assert opened.focused() == "r1-f2"
    inner.locator("button", has_text="Close").click()
    assert inner.locator(".stage").count() == 0


def test_the_keyboard_reaches_every_finding_and_every_picture(opened: Opened) -> None:
    reached = set()
    opened.draw_all()
    opened.page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    for _ in range(80):
        opened.page.keyboard.press("Tab")
        reached.add(
            opened.page.evaluate(
                "(document.activeElement.closest('.finding, figure.picture') || document.activeElement).id"
            )
        )
    assert {"r1-f0", "r1-f1", "r1-f2"} <= reached
    assert {f"r1-p{number}" for number in range(5)} <= reached


def test_the_arrows_walk_over_a_picture(opened: Opened) -> None:
    stage = opened.page.locator("#r1-p1 .stage")
    stage.scroll_into_view_if_needed()
    stage.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        opened.page.keyboard.press(key)
    assert opened.page.locator("#r1-p1 .readout").inner_text().startswith(f"{MODULES[1]} · layer 2")


def test_the_pointer_zooms_into_curves_and_a_button_shows_all(opened: Opened) -> None:
    figure = opened.page.locator("#r1-p1")
    figure.scroll_into_view_if_needed()
    over = figure.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    whole = figure.get_by_role("button", name="Show all")
    assert whole.is_hidden()
    opened.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30, steps=5)
    opened.page.mouse.up()
    whole.wait_for()
    figure.locator(".stage").focus()
    opened.page.keyboard.press("Home")  # the point is outside of what is shown, so the window moves
    assert figure.locator(".readout").inner_text().startswith(f"{MODULES[0]} · layer 0 · norm: 1")
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    # a quarter of 24 layers is shown: the last one of it is layer 5, not 23
    assert figure.locator(".legend .now").all_inner_texts() == ["1.5", "2.5", "3.5"]
    whole.click()
    assert whole.is_hidden()
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    assert figure.locator(".legend .now").all_inner_texts() == ["3.3", "4.3", "5.3"]


def test_the_keyboard_zooms_into_curves(opened: Opened) -> None:
    figure = opened.page.locator("#r1-p1")
    figure.scroll_into_view_if_needed()
    figure.locator(".stage").focus()
    whole = figure.get_by_role("button", name="Show all")
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("+")
    assert whole.is_visible()
    assert figure.locator(".ring").is_visible()
    opened.page.keyboard.press("-")
    assert whole.is_hidden()
    opened.page.keyboard.press("+")
    opened.page.keyboard.press("0")
    assert whole.is_hidden()


def test_a_legend_hides_a_line_of_curves(opened: Opened) -> None:
    figure = opened.page.locator("#r1-p1")
    figure.scroll_into_view_if_needed()
    line = figure.get_by_role("button", name=MODULES[0])
    line.click()
    assert line.get_attribute("aria-pressed") == "false"
    figure.locator(".stage").focus()
    opened.page.keyboard.press("ArrowRight")
    assert figure.locator(".readout").inner_text().startswith(MODULES[1])


def test_without_scripts_a_table_stands_for_every_picture(chromium: Any, tmp_path: Path) -> None:
    one = Opened(chromium, tmp_path, [DRAWN], java_script_enabled=False, viewport={"width": 360, "height": 800})
    tables = [table.inner_text() for table in one.page.locator("figure.picture table").all()]
    assert len(tables) == len(DRAWN.pictures) - 1  # one says why there is no picture
    assert "wrong" in tables[0]
    assert HOSTILE.replace("\u202e", "\\u202e") in tables[0]
    assert (one.trouble, one.requests) == ([], [one.url])
    one.page.close()


def test_a_table_stands_behind_every_picture(opened: Opened) -> None:
    opened.draw_all()
    for number in range(4):
        figure = opened.page.locator(f"#r1-p{number}")
        figure.locator("summary").click()
        figure.locator("tbody tr").first.wait_for()
    assert "model.layers.6.mlp.up_proj.weight" in opened.page.locator("#r1-p0 table").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_picture_is_saved_as_png_from_the_page(chromium: Any, tmp_path: Path, scheme: str) -> None:
    Image = pytest.importorskip("PIL.Image", reason="needs Pillow, which reads what was saved")
    one = Opened(chromium, tmp_path, [DRAWN], color_scheme=scheme)
    one.draw_all()
    figures = one.page.locator("article figure.picture").all()
    assert len(figures) == len(DRAWN.pictures)
    for figure, picture in zip(figures[:-1], DRAWN.pictures, strict=False):
        button = figure.get_by_role("button", name=f"Save as PNG: {picture.title}")
        button.focus()
        with one.page.expect_download() as started:
            one.page.keyboard.press("Enter")
        assert started.value.suggested_filename == f"{picture.title.replace(' ', '-')}.png"
        image = Image.open(started.value.path())
        box = figure.locator("figcaption").bounding_box()
        assert box is not None
        assert image.format == "PNG"
        assert image.width >= box["width"]
        colours = image.convert("RGB").getcolors(1 << 24)
        assert colours is not None
        assert len(colours) > 20  # paper, words and marks with their soft edges
        assert max(colours)[1] == ((255, 255, 255) if scheme == "light" else (17, 21, 27))
    assert figures[-1].get_by_role("button").count() == 0  # it says why there is no picture
    assert (one.trouble, one.requests) == ([], [one.url])
    one.page.close()


def test_a_saved_picture_is_as_the_picture_is_shown(opened: Opened) -> None:
    figure = opened.page.locator("#r1-p1")
    figure.scroll_into_view_if_needed()
    before = save(opened.page, figure)
    figure.get_by_role("button", name=MODULES[0]).click()
    after = save(opened.page, figure)
    assert before != after
    assert save(opened.page, figure) == after


def save(page: Any, figure: Any) -> bytes:
    """Save a picture and return the bytes of the file."""
    with page.expect_download() as started:
        figure.locator(".save").click()
    return Path(started.value.path()).read_bytes()


def test_paper_has_every_picture_and_is_light(chromium: Any, tmp_path: Path) -> None:
    one = Opened(chromium, tmp_path, [DRAWN], color_scheme="dark")
    one.page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert one.page.evaluate("document.querySelectorAll('figure.picture .stage').length") >= 4
    assert one.page.evaluate("document.documentElement.dataset.scheme") == "dark"
    assert one.trouble == []
    one.page.close()


def test_a_hundred_and_forty_thousand_tensors_open(chromium: Any, tmp_path: Path) -> None:
    one = Opened(chromium, tmp_path, [LARGE])
    one.page.locator("#r1-f2 .shows a").first.click()
    assert "1,520 experts" in one.page.locator("#r1-p0 > .readout").inner_text()
    one.page.keyboard.press("Enter")
    assert "1,520 experts" in one.page.locator("#r1-p0 .members h4").inner_text()
    assert one.trouble == []
    one.page.close()


def test_a_notebook_draws_the_pictures_in_its_frame(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "cell.html").write_text(f"<!doctype html><title>cell</title>{DRAWN._repr_html_()}", encoding="utf-8")
    page = chromium.new_page()
    page.goto((tmp_path / "cell.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#r1-p0").scroll_into_view_if_needed()
    frame.locator("#r1-p0 .stage").wait_for()
    page.close()


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    return report_every_verb(tmp_path_factory.mktemp("verbs"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_pictures_of_every_verb_are_drawn_without_trouble(
    chromium: Any, tmp_path: Path, verbs: dict[str, Report], width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 800}
    one = Opened(chromium, tmp_path, list(verbs.values()), viewport=viewport, color_scheme=scheme)
    one.draw_all()
    assert one.page.locator("article figure.picture").count() == sum(len(report.pictures) for report in verbs.values())
    assert list_clipped_texts(one.page) == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert (one.trouble, one.requests) == ([], [one.url])
    one.page.close()


def test_a_phone_shows_every_part_in_the_bar_and_the_layer_of_a_row(
    chromium: Any, tmp_path: Path, verbs: dict[str, Report]
) -> None:
    one = Opened(chromium, tmp_path, [verbs["record"]], viewport={"width": 360, "height": 800})
    one.draw_all()
    assert one.page.locator(".bar nav a").all_inner_texts() == ["Findings", "Pictures", "Measurements", "Rules"]
    assert list_clipped_texts(one.page) == []
    label = one.page.locator(f".rows div[title='{OUT}']").inner_text()
    assert label.startswith("…")
    assert label.endswith("1.self_attn.o_proj")
    one.page.close()


def test_a_finding_of_a_trial_leads_to_the_tensor_on_its_ranks(
    chromium: Any, tmp_path: Path, verbs: dict[str, Report]
) -> None:
    one = Opened(chromium, tmp_path, [verbs["trial"]])
    one.page.locator(".finding .shows a").first.click()
    readout = one.page.locator("#r1-p0 > .readout").inner_text()
    assert "2 ranks" in readout
    assert "not written" in readout
    one.page.keyboard.press("Enter")
    inner = one.page.locator("#r1-p0 .members")
    assert inner.locator("h4").inner_text().startswith("self_attn.o_proj: 2 ranks")
    assert OUT in inner.locator(".readout").inner_text()
    assert one.trouble == []
    one.page.close()


def test_a_finding_without_a_tensor_leads_to_the_picture_that_shows_it_and_back(
    chromium: Any, tmp_path: Path, verbs: dict[str, Report]
) -> None:
    one = Opened(chromium, tmp_path, [verbs["trial"]], reduced_motion="reduce")
    finding = one.page.locator(".rule", has_text="REF012").locator(".finding")
    finding.locator(".shows a", has_text="how far the engine is from the trainer").click()
    picture = one.page.locator("figure.picture", has=one.page.get_by_role("heading", name="from the trainer"))
    picture.locator(".stage").wait_for()
    assert picture.evaluate("e => Math.abs(e.getBoundingClientRect().top) < innerHeight")
    assert picture.locator(".findings a").all_inner_texts() == ["REF012"]
    picture.locator(".findings a").click()
    assert one.focused() == finding.get_attribute("id")
    assert one.trouble == []
    one.page.close()


def test_a_finding_of_a_record_leads_to_the_sync_at_which_a_tensor_was_stale(
    chromium: Any, tmp_path: Path, verbs: dict[str, Report]
) -> None:
    one = Opened(chromium, tmp_path, [verbs["record"]])
    one.page.locator(".finding .shows a", has_text="What the trainer sent").first.click()
    assert "step 2" in one.page.locator("#r1-p0 > .readout").inner_text()
    one.page.locator(".finding .shows a", has_text="What the engine held").first.click()
    readout = one.page.locator("#r1-p1 > .readout").inner_text()
    assert OUT in readout
    assert "step 2" in readout
    assert "stale" in readout
    one.page.keyboard.press("Enter")
    assert one.focused() == "r1-f0"
    assert one.trouble == []
    one.page.close()
