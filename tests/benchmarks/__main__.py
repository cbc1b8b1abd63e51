"""Run every benchmark: ``make bench``. Exits 1 where a figure misses its goal."""

import sys

from tests.benchmarks import (
    attribution,
    device,
    diagnosis,
    diff,
    figures,
    headers,
    identity,
    machines,
    megatron,
    pages,
    parity,
    refit,
    tolerance,
    values,
    watch,
)

if __name__ == "__main__":
    headers.main()
    values.main()
    megatron.main()
    identity.main()
    diff.main()
    tolerance.main()
    diagnosis.main()
    refit.main()
    device.main()
    parity.main()
    watch.main()
    attribution.main()
    machines.main()
    pages.main()
    if figures.missed:
        sys.exit(f"\nmissed: {'; '.join(figures.missed)}")
