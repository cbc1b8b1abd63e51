"""Run every benchmark: ``make bench``."""

from tests.benchmarks import diagnosis, diff, headers, values

if __name__ == "__main__":
    headers.main()
    values.main()
    diff.main()
    diagnosis.main()
