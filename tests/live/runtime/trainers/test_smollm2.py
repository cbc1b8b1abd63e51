"""A real model in the trainers: SmolLM2-135M, whose nine heads and three groups no power of two divides."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.live.runtime.environments.recipe import find_recipe
from ckptcheck.live.runtime.environments.store import find_environment
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        find_environment(find_recipe("megatron")).state != "ready", reason="needs ckptcheck engine install megatron"
    ),
]
TEXTS = ("The capital of France is Paris, and the capital of Italy is Rome.", "Water boils at a hundred degrees.")


@pytest.fixture(scope="module")
def exchange() -> Iterator[TensorExchange]:
    with TensorExchange("file") as made:
        yield made


def test_layouts_of_a_real_model_score_and_speak_alike(smollm2: Path, exchange: TensorExchange) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    sequences = [tokenizer.encode(text).ids for text in TEXTS]
    model = open_checkpoint(str(smollm2))
    trainer = start_transformers(model, exchange)
    with trainer.host:
        reference, said = trainer.score(sequences), trainer.decode_greedy(sequences[0][:5], 6)
        names = {weight.name for weight in trainer.weights()}
    assert " Paris" in tokenizer.decode(said)
    host: WorkerClient | None = None
    try:
        for layout in (ParallelLayout(pp=2), ParallelLayout(tp=3)):
            trainer = start_megatron(model, exchange, layout=layout, process=TrainerProcess(host=host))
            host = trainer.host
            scores = trainer.score(sequences)
            apart = [
                abs(a - b)
                for one, other in zip(scores, reference, strict=True)
                for a, b in zip(one, other, strict=True)
            ]
            assert max(apart) < 2e-5, apart
            assert np.mean(apart) < 6e-6  # two implementations in float32, 30 layers apart
            assert trainer.decode_greedy(sequences[0][:5], 6) == said
            assert {weight.name for weight in trainer.weights()} == names == set(model.tensor_to_file)
            parcels = trainer.export(1 << 26)
            assert len(parcels) > 5
            for parcel in parcels:
                with safe_open(parcel.address["path"], framework="np") as held:
                    for name in parcel.names:
                        bits = held.get_tensor(name).view(np.uint32)
                        assert not (bits & 0xFFFF).any()  # float32 that came of bfloat16
                        assert (bits.reshape(-1) >> 16).astype("<u2").tobytes() == raw(
                            smollm2, model.tensor_to_file[name], name
                        )
                os.unlink(parcel.address["path"])
    finally:
        if host is not None:
            host.close()


def raw(folder: Path, file: str, name: str) -> bytes:
    """Return the bytes of a tensor as the source has them."""

    with (folder / file).open("rb") as held:
        length = int.from_bytes(held.read(8), "little")
        begin, end = json.loads(held.read(length))[name]["data_offsets"]
        held.seek(8 + length + begin)
        return held.read(end - begin)
