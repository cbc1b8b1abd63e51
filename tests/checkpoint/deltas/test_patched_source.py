"""The files of a checkpoint after a chain: read in any piece, by any number of threads, in another process, and told apart."""

from __future__ import annotations

import pickle
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas import patched_source
from ckptcheck.checkpoint.deltas.patched_source import PatchedSource
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.source import describe_version
from ckptcheck.compare.matching.tensor_files import TensorFiles
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.deltas import read_weights, take_step, write_disk_delta, write_weights

FILE = "model.safetensors"


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Checkpoint, bytes]:
    """A chain, and the bytes of the file that it leads to."""
    base = shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "base")
    before = read_weights(base)
    after = take_step(before, 1, 0.2, 4)
    write_weights(base, before)
    full = shutil.copytree(base, tmp_path / "full")
    write_weights(full, after)
    delta = write_disk_delta(tmp_path / "delta", before, after)
    return open_checkpoint(f"{base}+{delta}"), (full / FILE).read_bytes()


def test_any_piece_is_that_of_the_whole_file(chain: tuple[Checkpoint, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt, whole = chain
    assert ckpt.source.read(FILE, 0, len(whole)) == whole
    # nothing is kept: each piece is computed again
    monkeypatch.setattr(patched_source, "MOST_KEPT", 0)
    monkeypatch.setattr(patched_source, "LEAST_KEPT", 0)
    dice = random.Random(5)
    pieces = [(dice.randrange(len(whole) + 9), dice.choice([0, 1, 7, 100, 5000])) for _ in range(300)]
    with ThreadPoolExecutor(8) as pool:
        for (start, length), found in zip(
            pieces, pool.map(lambda at: ckpt.source.read(FILE, *at), pieces), strict=True
        ):
            assert found == whole[start : start + length], (start, length)


def test_it_goes_to_another_process(chain: tuple[Checkpoint, bytes]) -> None:
    ckpt, whole = chain
    with TensorFiles(pickle.loads(pickle.dumps(ckpt.source))) as files:
        assert files.source.local is None
        assert files.source.read(FILE, 0, len(whole)) == whole


def test_a_delta_that_is_written_again_changes_the_version_of_each_file(tmp_path: Path) -> None:
    before = read_weights(CHECKPOINTS / "tiny-llama")
    versions = set()
    for seed in (1, 2):
        shutil.rmtree(tmp_path / "delta", ignore_errors=True)
        delta = write_disk_delta(tmp_path / "delta", before, take_step(before, seed, 0.2, 4))
        versions.add(describe_version(open_checkpoint(f"{CHECKPOINTS / 'tiny-llama'}+{delta}").source, FILE))
    assert len(versions) == 2


def test_a_few_tensors_are_kept_and_no_more(chain: tuple[Checkpoint, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt, whole = chain
    assert isinstance(ckpt.source, PatchedSource)
    monkeypatch.setattr(patched_source, "MOST_KEPT", 4096)
    ckpt.source.read(FILE, 0, len(whole))
    kept = ckpt.source._kept
    assert len(kept) == 2 or sum(data.nbytes for data in kept.values()) <= 4096


def test_a_scan_of_headers_reads_no_delta(chain: tuple[Checkpoint, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt, _ = chain
    monkeypatch.setattr(PatchedSource, "read", lambda *_: pytest.fail("it was read"))
    assert len(ckpt.tensors) == len(ckpt.shards[FILE].tensors) > 0
