"""A scan of headers of a Megatron checkpoint with 100,000 keys: whole processes, start of Python included."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.headers import SCAN, line, once

ROOT = Path(__file__).parent.parent.parent
KEYS, FILES, LENGTH = 100_000, 64, 3_000


def write(folder: Path) -> None:
    """Write the table of contents of 1,000 layers of 100 experts, and sparse data files."""
    sys.path.insert(0, str(ROOT / "tests"))
    import dcp

    from ckptcheck.checkpoint.megatron.tensor import Item

    table = dcp.Table()
    for number in range(KEYS):
        key = f"decoder.layers.{number // 100}.mlp.experts.experts.{number % 100}.linear_fc2.weight"
        item = Item(f"__{number % FILES}_0.distcp", number // FILES * LENGTH, LENGTH)
        table.dtypes[key], table.shapes[key] = "BF16", (16, 48)
        table.chunks[key] = [((0, 0), (16, 48), item)]
    folder.mkdir()
    dcp.write(folder / ".metadata", table)
    for number in range(FILES):
        with (folder / f"__{number}_0.distcp").open("wb") as file:
            file.truncate((KEYS // FILES + 1) * LENGTH)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "iter_0000100"
        write(folder)
        print(f"megatron: {KEYS:,} keys in {FILES} files, headers only; medians of 5 runs")
        runs = [once([*SCAN, str(folder)]) for _ in range(5)]
        line("scan, seconds (start of Python included)", f"{statistics.median(time for time, _ in runs):.2f}", "≤ 3.00")
        line("peak memory of the scan, MB", f"{statistics.median(memory for _, memory in runs):.0f}", "≤ 500")


if __name__ == "__main__":
    main()
