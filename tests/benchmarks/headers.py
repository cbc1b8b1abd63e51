"""Scans of headers in sparse files, all rules on: against a reader that checks nothing, a larger one, a tiny one, and as a page."""

from __future__ import annotations

import sys

from tests.benchmarks.checkpoints import TINY, write_headers
from tests.benchmarks.figures import line
from tests.benchmarks.processes import CKPTCHECK, median, ratio, run, run_in_turn, temporary_folder

SCAN = [*CKPTCHECK, "scan", "--headers-only"]
READ = [
    sys.executable,
    "-c",
    "import sys; from huggingface_hub import get_local_safetensors_metadata as read; read(sys.argv[1])",
]
LAYERS, MANY_LAYERS = 61, 431


def main() -> None:
    """Measure and print."""
    folder, tensors = write_headers(LAYERS)
    print(f"headers: {tensors:,} tensors in {LAYERS + 1} shards, 1.03 TB logical; seconds of a core, whole processes")
    page = ["--format", "html", "-o", str(temporary_folder() / "headers.html")]
    scans, reads, pages = run_in_turn([*SCAN, str(folder)], [*READ, str(folder)], [*SCAN, str(folder), *page])
    line("scan, seconds", f"{median(scans).seconds:.2f}", "")
    line("scan / huggingface_hub.get_local_safetensors_metadata", f"{ratio(scans, reads).seconds:.2f}", "≤ 0.6")
    line("--format html / text, seconds", f"{ratio(pages, scans).seconds:.2f}", "≤ 1.3")
    line("--format html / text, memory", f"{ratio(pages, scans).megabytes:.2f}", "≤ 1.3")
    tiny, headers, version = run_in_turn(
        [*CKPTCHECK, "scan", str(TINY)], [*SCAN, str(TINY)], [*CKPTCHECK, "--version"], rounds=5
    )
    line("scan of a tiny checkpoint, seconds", f"{median(tiny).seconds:.2f}", "≤ 0.20")
    line("the same, headers only", f"{median(headers).seconds:.2f}", "≤ 0.13")
    line("ckptcheck --version, seconds", f"{median(version).seconds:.2f}", "≤ 0.05")
    many, number = write_headers(MANY_LAYERS)
    run([*SCAN, str(many)])
    most = median([run([*SCAN, str(many)]) for _ in range(2)])
    start = median(headers).seconds
    growth = (most.seconds - start) / (median(scans).seconds - start) / (number / tensors)
    line(f"scan of {number:,} tensors, seconds", f"{most.seconds:.2f}", "≤ 3")
    line("its peak of memory, MB", f"{most.megabytes:.0f}", "≤ 600")
    line("its seconds a tensor / those of the smaller one", f"{growth:.2f}", "≤ 1.1")


if __name__ == "__main__":
    main()
