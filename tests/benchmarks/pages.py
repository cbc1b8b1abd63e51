"""Pages: what the pictures of values cost a scan, and how soon a browser shows a page.

A scan of many small tensors as text and as a page, whole processes in turn. Then the page in a headless Chromium (make browser),
from the address to a picture that is drawn: by the clock, and by the time that its main thread keeps a core busy, which other work
on the machine does not lengthen.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import time
from pathlib import Path

from msgspec import structs

from ckptcheck.reporters.html.page import render_page
from tests.benchmarks.checkpoints import write_experts
from tests.benchmarks.figures import line
from tests.benchmarks.processes import CKPTCHECK, PAIRS, ratio, run_in_turn, temporary_folder
from tests.factories.pictures import DRAWN, make_heat_map


def open_in_browser(pages: dict[str, Path]) -> None:
    """Print the seconds until the first picture of each page is drawn; say where there is no browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("pages are not opened: there is no Chromium, or no playwright (make browser)")
        return
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, path in pages.items():
            times, busy = [], []
            for _ in range(PAIRS):
                page = browser.new_page()
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable", {"timeDomain": "threadTicks"})
                began = time.perf_counter()
                page.goto(path.as_uri())
                page.locator("figure.picture").first.scroll_into_view_if_needed()
                page.locator("figure.picture[data-drawn]").first.wait_for()
                times.append(time.perf_counter() - began)
                metrics = session.send("Performance.getMetrics")["metrics"]
                busy.append(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))
                page.close()
            line(
                f"seconds until a page of {name} tensors shows its first picture",
                f"{statistics.median(times):.2f}",
                "≤ 2",
            )
            line(
                f"the same of {name} tensors, time of a core in the page's thread",
                f"{statistics.median(busy):.2f}",
                "≤ 1",
            )
        browser.close()


def main() -> None:
    """Measure and print."""
    page, large = temporary_folder() / "experts.html", temporary_folder() / "large.html"
    scan = [*CKPTCHECK, "scan", str(write_experts())]
    print(f"\npages: a scan of values of many small tensors, {PAIRS} pairs, medians")
    pages, texts = run_in_turn([*scan, "--format", "html", "-o", str(page)], scan)
    line("scan with --format html / with text, time of a core", f"{ratio(pages, texts).seconds:.2f}", "≤ 1.3")
    line("the page, MB", f"{page.stat().st_size / 1e6:.2f}", "≤ 2")
    began = time.process_time()
    text = render_page([structs.replace(DRAWN, pictures=(make_heat_map(layers=92, experts=1520),))])
    line("seconds to write a page of 140,000 tensors", f"{time.process_time() - began:.2f}", "≤ 5")
    large.write_text(text, encoding="utf-8")
    open_in_browser({"20,439": page, "140,000": large})


if __name__ == "__main__":
    main()
