"""Run every benchmark, or those that are named: ``make bench ONLY="pages watch"``. Exits 1 where a figure misses its goal.

What was measured is kept in tests/data/figures.json.
"""

import sys

from tests.benchmarks import (
    device,
    diff,
    figures,
    headers,
    identity,
    machines,
    megatron,
    pages,
    parity,
    refit,
    series,
    values,
    watch,
)

BENCHMARKS = {
    module.__name__.rpartition(".")[2]: module
    for module in (headers, values, diff, identity, parity, machines, pages, megatron, series, watch, refit, device)
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.exit(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        BENCHMARKS[name].main()
        figures.keep(name)
    if figures.missed:
        sys.exit(f"\n{len(figures.missed)} figures miss their goals")
