"""The reader of SentencePiece models refuses what protocol buffers refuses, and reads the same pieces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ckptcheck.checkpoint.sentencepiece_file import read_pieces
from tests.paths import ROOT

sentencepiece = pytest.importorskip("sentencepiece", reason="make test-all installs it")
pytest.importorskip("google.protobuf", reason="make test-all installs it")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("model")
    sentencepiece.SentencePieceTrainer.train(
        input=str(ROOT / "README.md"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=600,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return (folder / "tokenizer.model").read_bytes()


def _parse(raw: bytes) -> list[str] | None:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2  # type: ignore[attr-defined]

    message = sentencepiece_model_pb2.ModelProto()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return None
    return [piece.piece for piece in message.pieces]


def test_it_reads_the_pieces(model: bytes) -> None:
    assert read_pieces(model) == (_parse(model), None)


@pytest.mark.parametrize("seed", range(4))
def test_it_refuses_what_protocol_buffers_refuses(model: bytes, seed: int) -> None:
    chance = random.Random(seed)
    refused = told = 0
    for _ in range(200):
        raw, start = bytearray(model), chance.randrange(len(model))
        length = chance.randrange(1, 400)
        match chance.randrange(4):
            case 0:
                del raw[start:]
            case 1:
                del raw[start : start + length]
            case 2:
                raw[start : start + length] = bytes(len(raw[start : start + length]))
            case _:
                raw[start] = chance.randrange(256)
        defect = read_pieces(bytes(raw))[1]
        is_refused = _parse(bytes(raw)) is None
        is_told = defect is not None and defect.kind == "torn"
        assert is_told or not is_refused
        refused, told = refused + is_refused, told + is_told
    # Protocol buffers skips a group, which no such model has, and which a changed byte may seem to begin.
    assert 40 < refused <= told <= refused + 4
