"""A scan of headers of a Megatron checkpoint with 100,000 keys: seconds of a core, whole processes.

The table of contents is what torch itself pickles, as a rank 0 does that got its names and places from others: no text is
shared between an entry and its place. The files are sparse, each of some gigabytes.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.benchmarks.figures import line
from tests.benchmarks.headers import SCAN
from tests.benchmarks.processes import PAIRS, median, run_in_turn, temporary_folder

KEYS, FILES, LENGTH = 100_000, 64, 3_000_000


def write(folder: Path) -> None:
    """Write the table of contents of 1,000 layers of 100 experts with nothing else in them, and sparse data files."""
    import torch
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    shape = torch.Size((16, 48))
    listed: dict[str, dcp.STORAGE_TYPES] = {}
    stored = {}
    for number in range(KEYS):
        begin = torch.Size((0, 0))
        key = f"decoder.layers.{number // 100}.mlp.experts.experts.{number % 100}.linear_fc2.weight"
        chunk = dcp.ChunkStorageMetadata(begin, shape)
        listed[key] = dcp.TensorStorageMetadata(dcp.TensorProperties(torch.bfloat16), torch.Size(shape), [chunk])
        place = _StorageInfo(f"__{number % FILES}_0.distcp", number // FILES * LENGTH, LENGTH)
        stored[dcp.MetadataIndex(f"{key} "[:-1], torch.Size(begin))] = place
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(dcp.Metadata(listed, None, stored), protocol=4))
    for number in range(FILES):
        with (folder / f"__{number}_0.distcp").open("wb") as file:
            file.truncate((KEYS // FILES + 1) * LENGTH)


def main() -> None:
    """Measure and print."""
    folder = temporary_folder() / "iter_0000100"
    write(folder)
    print(f"\nmegatron: {KEYS:,} keys in {FILES} files, headers only; {PAIRS} runs, medians")
    (scans,) = run_in_turn([*SCAN, "--fail-on", "never", str(folder)])
    line("scan, seconds", f"{median(scans).seconds:.2f}", "≤ 3.00")
    line("peak of memory, MB", f"{median(scans).megabytes:.0f}", "≤ 500")


if __name__ == "__main__":
    main()
