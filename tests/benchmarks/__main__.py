"""Run every benchmark: ``make bench``."""

from tests.benchmarks import (
    attribution,
    device,
    diagnosis,
    diff,
    headers,
    megatron,
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
    diff.main()
    tolerance.main()
    diagnosis.main()
    refit.main()
    device.main()
    parity.main()
    watch.main()
    attribution.main()
