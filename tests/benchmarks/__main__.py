"""Run every benchmark: ``make bench``."""

from tests.benchmarks import headers

if __name__ == "__main__":
    headers.main()
