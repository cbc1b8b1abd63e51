"""The fault matrix of the attribution: what the ladder names first, over three seeds and every model that can have the fault."""

from __future__ import annotations

import sys

from tests.benchmarks.headers import ROOT

SEEDS = 3


def main() -> None:
    """Measure and print."""
    sys.path[:0] = [str(ROOT / "fixtures")]
    from tests.live.experiments.attribution.twin import table

    print("\nattribution: the fault matrix")
    rows, right, total = table(SEEDS)
    for name, cells, hits, others in rows:
        print(f"{name:<48} {hits:>3} of {cells:<3} {others}")
    print(f"right cause first: {right} of {total}")


if __name__ == "__main__":
    main()
