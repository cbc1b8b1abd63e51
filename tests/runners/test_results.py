"""What another machine answers is held against the work that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ckptcheck.runners.runner import MalformedResult, decode_results
from ckptcheck.values.value_pass import BatchResult, BatchScan
from ckptcheck.values.worker import Batch, Piece
from tests.fuzz import CHECKPOINTS


def _scan() -> BatchScan:
    from ckptcheck.checkpoint.open import open_checkpoint

    return BatchScan(open_checkpoint(str(CHECKPOINTS / "tiny-llama")).source, ())


BATCHES = [Batch("model.safetensors", "", 8, [Piece(0, 8, "F32", 0, 0)])] * 2
WHOLE = msgspec.msgpack.encode(BatchResult(reason="no disk"))


def test_results_of_the_work_are_taken() -> None:
    found = list(decode_results(_scan(), BATCHES, [WHOLE, WHOLE]))
    assert [(batch is BATCHES[0], result.reason) for batch, result in found] == [(True, "no disk")] * 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "there is not one result for each piece of the work"),
        ({"0": WHOLE}, "there is not one result for each piece of the work"),
        ([WHOLE], "there is not one result for each piece of the work"),
        ([WHOLE] * 3, "there is not one result for each piece of the work"),
        ([WHOLE, "text"], "bytes-like"),
        ([WHOLE, 7], "bytes-like|buffer"),
        ([WHOLE, b"\xc1"], "MessagePack"),
        ([WHOLE, msgspec.msgpack.encode([])], "Expected `object`"),
        ([WHOLE, b"\x81\xa6chunks" + b"\x91" * 100_000], "Expected|recursion"),
        ([WHOLE, msgspec.msgpack.encode(BatchResult())], "a result does not fit its piece of the work"),
        ([WHOLE, bytes((1 << 22) + 129)], "a result has 4,194,433 bytes, more than its piece of the work"),
    ],
)
def test_what_is_no_result_is_refused_with_a_reason(answer: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedResult, match=why):
        list(decode_results(_scan(), BATCHES, answer))
