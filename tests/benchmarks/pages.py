"""Pages: what the HTML report costs a scan, and how soon a browser shows it.

A scan of 60,000 small tensors as text and as a page, whole processes in turn, by the time that they keep a core busy: the median
of the pairs' ratios. Then the value pass of a model in the page cache with the samples that sketches need, and without, by the same
time. Then the page in a headless Chromium (make browser), from the address to a picture that is drawn: by the clock, and by the
time that its main thread keeps a core busy, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.reporters.html.page import render_page
from ckptcheck.values.value_pass import ValuePass
from tests.benchmarks.figures import line
from tests.benchmarks.values import seconds, write
from tests.factories.pictures import DRAWN, make_heat_map

PAIRS, ROUNDS, LAYERS, EXPERTS = 3, 5, 60, 330
SCAN = [sys.executable, "-m", "ckptcheck", "scan"]


def busy_seconds(work: Callable[[], object]) -> float:
    """Call something; return the seconds of a core that it and its finished children took."""

    def spent() -> float:
        usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = spent()
    work()
    return spent() - before


def run_quietly(command: Sequence[str]) -> None:
    """Run a command without showing what it says."""
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_experts(folder: Path) -> int:
    """Write LAYERS layers of EXPERTS small experts, one file each; return how many tensors they have."""
    folder.mkdir()
    random = np.random.default_rng(0)
    pool = ((random.standard_normal(1 << 22, np.float32) * 0.02).view(np.uint32) >> 16).astype(np.uint16)
    weight_map: dict[str, str] = {}
    shift = 0
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes: dict[str, tuple[int, ...]] = {
            f"{at}.mlp.experts.{expert}.{name}_proj.weight": (64, 32) if name == "down" else (32, 64)
            for expert in range(EXPERTS)
            for name in ("gate", "up", "down")
        }
        file, header, blocks = f"model-{layer + 1:05}-of-{LAYERS:05}.safetensors", {}, []
        for number, (tensor, shape) in enumerate(shapes.items()):
            offsets = [number * 4096, (number + 1) * 4096]
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
            shift = (shift + 6147) % (pool.size - 2048)
            blocks.append(pool[shift : shift + 2048].tobytes())
            weight_map[tensor] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))
    index = {"metadata": {"total_size": 4096 * len(weight_map)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return len(weight_map)


def scan_once(folder: Path, *, takes_samples: bool) -> None:
    """Read every value, and sketch the tensors if samples are taken."""
    reader = ValuePass(jobs=1, takes_samples=takes_samples)
    ckpt = open_checkpoint(str(folder), value_reader=reader)
    try:
        reader.start(ckpt)
        ckpt.values.sketches  # noqa: B018 (they are worked out when they are asked for)
    finally:
        reader.close()


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
    with tempfile.TemporaryDirectory() as work:
        folder, page = Path(work) / "experts", Path(work) / "page.html"
        tensors = write_experts(folder)
        print(f"\npages: {tensors:,} tensors, {PAIRS} pairs of scans, medians")
        as_text = [*SCAN, str(folder), "-o", str(Path(work) / "report.txt")]
        as_page = [*SCAN, str(folder), "--format", "html", "-o", str(page)]
        ratios = [
            busy_seconds(lambda: run_quietly(as_page)) / busy_seconds(lambda: run_quietly(as_text))
            for _ in range(PAIRS)
        ]
        line("scan with --format html / with text, time of a core", f"{statistics.median(ratios):.2f}", "≤ 1.3")
        line("the page, MB", f"{page.stat().st_size / 1e6:.2f}", "≤ 2")
        model = Path(work) / "model"
        write(model, 1)
        scan_once(model, takes_samples=True)
        ratios = []
        for _ in range(ROUNDS):
            plain = busy_seconds(lambda: scan_once(model, takes_samples=False))
            ratios.append(busy_seconds(lambda: scan_once(model, takes_samples=True)) / plain)
        line("the value pass with samples / without", f"{statistics.median(ratios):.2f}", "≤ 1.1")
        large = Path(work) / "large.html"
        report = replace(DRAWN, pictures=(make_heat_map(layers=92, experts=1520),))
        line("seconds to write a page of 140,000 tensors", f"{seconds(lambda: render_page([report])):.2f}", "≤ 5")
        large.write_text(render_page([report]), encoding="utf-8")
        open_in_browser({f"{tensors:,}": page, "140,000": large})


if __name__ == "__main__":
    main()
