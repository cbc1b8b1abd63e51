"""A series of saves of SmolLM2: what a call costs that finds one new save among others that it knows, or several new ones.

The files of a save that is known are replaced by holes of the same size and time, so that all saves take the disk of one, and it
would be seen if one were read again. With an argument, so many saves: ``python -m tests.benchmarks.series 8``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.verbs.series import series
from tests.benchmarks.checkpoints import find_smollm2
from tests.benchmarks.figures import line

SAVES = 6
AT_ONCE = 2


def write_save(source: Path, run: Path, step: int) -> Path:
    """Write the weights after a step of training: some bits of each tensor differ from those of the step before."""
    folder = run / f"checkpoint-{step}"
    shutil.copytree(source, folder)
    ckpt = open_checkpoint(str(folder))
    for name, tensor in ckpt.tensors.items():
        shard = ckpt.shards[ckpt.tensor_to_file[name]]
        with (folder / shard.name).open("r+b") as file:
            file.seek(shard.data_start + tensor.data_offsets[0])
            part = np.frombuffer(file.read(min(tensor.nbytes, 1 << 16)), np.uint16) ^ np.uint16(step)
            file.seek(shard.data_start + tensor.data_offsets[0])
            file.write(part.tobytes())
    return folder


def hollow(folder: Path) -> None:
    """Give the space of a save back, and keep what says that its files are the same."""
    for path in folder.glob("*.safetensors"):
        status = path.stat()
        os.truncate(path, 0)
        os.truncate(path, status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of a core that a call takes, with the processes that it starts and waits for."""
    before = os.times()
    work()
    return sum(after - began for after, began in zip(os.times()[:4], before[:4], strict=True))


def main(saves: int = SAVES) -> None:
    """Measure and print."""
    source = find_smollm2()
    if source is None:
        return
    with tempfile.TemporaryDirectory() as work:
        run, cache = Path(work) / "run", Path(work) / "saves.json"

        def look() -> None:
            report = series(run, cache=cache)
            assert sum(row[3] > 200 for row in report.sections[0].rows) == sum(1 for _ in run.iterdir())  # type: ignore[operator]

        alone, again = [], []
        for step in range(1, saves + 1):
            folder = write_save(source, run, step)
            alone.append(seconds(look))
            again.append(seconds(look))
            hollow(folder)
        several = [write_save(source, run, saves + number) for number in range(1, AT_ONCE + 1)]
        together = seconds(look)
        known = statistics.median(again[saves // 2 :])
        first, last = statistics.median(alone[: saves // 2]), statistics.median(alone[saves // 2 :])
        size = sum(file.stat().st_size for file in several[0].iterdir()) / 1e6
        print(f"\nseries: {saves} saves of SmolLM2, {size:.0f} MB each; seconds of a core")
        line("one new save, second half of the series / first half", f"{last / first:.2f}", "≤ 1.5")
        line(f"{AT_ONCE} new saves / as many times one new save", f"{together / (AT_ONCE * last):.2f}", "≤ 1.5")
        line("a known save / a new save", f"{known / saves / last:.2f}", "≤ 0.1")
        line("one new save among all, seconds", f"{last:.2f}", "")
        line("the kept file, KB a save", f"{cache.stat().st_size / 1e3 / (saves + AT_ONCE):.0f}", "")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
