"""A diff of two equal checkpoints in the page cache, against ``cmp`` on the same files: seconds of a core, whole processes."""

from __future__ import annotations

import shutil

from tests.benchmarks.checkpoints import count_bytes, write_dense
from tests.benchmarks.figures import line
from tests.benchmarks.processes import CKPTCHECK, measure_anonymous, median, ratio, run_in_turn, temporary_folder

CMP = ["/bin/sh", "-ec", 'for file in "$0"/*.safetensors; do cmp "$file" "$1/${file##*/}"; done']


def main() -> None:
    """Measure and print."""
    first, second = str(write_dense()), str(temporary_folder() / "copy")
    shutil.copytree(first, second)
    diff = [*CKPTCHECK, "diff", first, second]
    print(f"\ndiff: two equal checkpoints of {count_bytes(write_dense()) / 1e9:.1f} GB in the page cache")
    ours, theirs = run_in_turn(diff, [*CMP, first, second])
    line("diff, seconds", f"{median(ours).seconds:.2f}", "")
    line("diff / cmp of the same files", f"{ratio(ours, theirs).seconds:.2f}", "≤ 1.0")
    line("peak of anonymous memory, MB", f"{measure_anonymous(diff):.0f}", "≤ 500")
    shutil.rmtree(second)


if __name__ == "__main__":
    main()
