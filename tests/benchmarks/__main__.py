"""Run every benchmark: ``make bench``."""

from tests.benchmarks import headers, values

if __name__ == "__main__":
    headers.main()
    values.main()
