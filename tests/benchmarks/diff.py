"""A diff of two equal checkpoints in the page cache, against ``cmp`` on the same bytes, both as whole processes, in turn."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.figures import line
from tests.benchmarks.headers import ROOT
from tests.benchmarks.values import ROUNDS, anonymous, seconds, write

DIFF = [sys.executable, "-m", "ckptcheck", "diff"]


def compare_with_cmp(first: Path, second: Path) -> None:
    """Run cmp on every pair of files."""
    for path in sorted(first.glob("*.safetensors")):
        subprocess.run(["cmp", str(path), str(second / path.name)], check=True)


def compare(first: Path, second: Path) -> None:
    """Run the diff; stop if it finds anything."""
    subprocess.run([*DIFF, str(first), str(second), "-o", "/dev/null", "--format", "json"], check=True, cwd=ROOT)


def peak(first: Path, second: Path) -> float:
    """Peak anonymous memory of a diff in a process of its own, in MB."""
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "import threading; from tests.benchmarks.diff import in_process; from tests.benchmarks.values import anonymous\n"
        "peak = [0.0]; over = threading.Event()\n"
        "def watch():\n"
        "    while not over.wait(0.01): peak[0] = max(peak[0], anonymous())\n"
        "thread = threading.Thread(target=watch); thread.start(); in_process(*sys.argv[1:3]); over.set(); thread.join()\n"
        "print(peak[0])"
    )
    command = [sys.executable, "-c", program, str(first), str(second)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


def in_process(first: str, second: str) -> None:
    """Compare in this process."""
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.open_side import open_side
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules

    report = run_rules(Comparison(open_side(first), open_side(second)), rule_loader.load_rules())
    if report.verdict != "clean":
        sys.exit(f"the copies are not equal: {report.findings[:2]} {report.crashed[:2]}")


def main(gigabytes: float = 4) -> None:
    """Measure and print."""
    assert anonymous() > 0
    with tempfile.TemporaryDirectory() as work:
        first, second = Path(work) / "first", Path(work) / "second"
        size = write(first, gigabytes)
        shutil.copytree(first, second)
        print(f"\ndiff: two equal checkpoints of {size / 1e9:.1f} GB in the page cache; {ROUNDS} rounds, medians")
        compare_with_cmp(first, second)
        times = [
            (seconds(lambda: compare_with_cmp(first, second)), seconds(lambda: compare(first, second)))
            for _ in range(ROUNDS)
        ]
        share = statistics.median(theirs / ours for theirs, ours in times)
        line("speed of the diff / cmp on the same bytes", f"{share:.2f}", "≥ 0.5")
        line(
            "diff, GB/s of each side, start of Python included",
            f"{size / 1e9 / statistics.median(b for _, b in times):.1f}",
            "",
        )
        line("peak anonymous memory, MB", f"{peak(first, second):.0f}", "≤ 500")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4)
