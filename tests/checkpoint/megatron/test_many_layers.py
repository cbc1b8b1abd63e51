"""A shape of a million layers takes a few bytes: it is not taken apart, and neither are chunks that overlap without end."""

from __future__ import annotations

import pytest

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.weights import unstack_weights
from tests.limited_child import run_limited

NAME = "decoder.layers.mlp.linear_fc1.weight"
EXPERTS = "decoder.layers.mlp.experts.experts.linear_fc1.weight"


def _tensor(key: str, shape: tuple[int, ...], chunks: int, size: tuple[int, ...]) -> GlobalTensor:
    item = Item("__0_0.distcp", 0, 8)
    parts = tuple(Chunk((0,) * len(shape), size, item, "", 0) for _ in range(chunks))
    return GlobalTensor(key, "F32", shape, parts)


HOSTILE = {
    "a million layers": [_tensor(NAME, (1 << 20, 8, 8), 1, (1, 8, 8))],
    "many keys of many layers": [_tensor(f"{n}.{NAME}", (30_000, 8, 8), 1, (1, 8, 8)) for n in range(500)],
    "a million experts": [_tensor(EXPERTS, (1024, 1024, 8, 8), 1, (1, 1, 8, 8))],
    "chunks that overlap": [_tensor(NAME, (30_000, 8, 8), 2000, (30_000, 8, 8))],
    "no layers": [_tensor(NAME, (0, 8, 8), 1, (0, 8, 8)), _tensor(EXPERTS, (3,), 1, (3,))],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_layers_without_end_are_not_taken_apart(case: str) -> None:
    tensors = {tensor.key: tensor for tensor in HOSTILE[case]}
    outcome = run_limited(lambda: str(len(unstack_weights(tensors))))
    assert not outcome.fault
    assert int(outcome.answer) < 100_000


@pytest.mark.slow
def test_as_many_layers_and_experts_as_megatron_writes_are_taken_apart() -> None:
    """A chunk for each layer and expert, as in the largest models: 100 layers of 1,024 experts."""
    chunks = tuple(
        Chunk((layer, expert, 0, 0), (1, 1, 8, 8), Item("__0_0.distcp", 0, 8), "", 0)
        for layer in range(100)
        for expert in range(1024)
    )
    weights = unstack_weights({EXPERTS: GlobalTensor(EXPERTS, "F32", (100, 1024, 8, 8), chunks)})
    assert len(weights) == 102_400
    last = weights["decoder.layers.99.mlp.experts.local_experts.1023.linear_fc1.weight"]
    assert (last.shape, len(last.chunks)) == ((8, 8), 1)
