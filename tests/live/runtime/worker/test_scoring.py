"""The batch that the transformers trainer fills up: masked on the right, and no model notices it."""

from __future__ import annotations

from pathlib import Path

import live
import pytest

from tests.conftest import needs

needs("torch")
import torch  # noqa: E402

from ckptcheck.live.runtime.worker.ckptcheck_worker.scoring import score_batched  # noqa: E402

SEQUENCES = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [30, 31]]


class Bidirectional(torch.nn.Module):
    """Every token is told of all tokens that the mask shows: what stands in the padding would show too."""

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> object:
        sums = (tokens * attention_mask).sum(1)
        logits = torch.arange(40.0).repeat(*tokens.shape, 1) * (
            0.1 * sums[:, None, None] + attention_mask.sum(1)[:, None, None]
        )
        return type("Output", (), {"logits": logits})


def test_what_a_sequence_is_filled_up_with_is_masked() -> None:
    together = score_batched(Bidirectional(), SEQUENCES, "cpu")
    alone = [score_batched(Bidirectional(), [sequence], "cpu")[0] for sequence in SEQUENCES]
    assert [len(values) for values in together] == [2, 6, 1]
    assert together == [pytest.approx(values) for values in alone]


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_real_models_score_the_same_beside_longer_sequences(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(live.write(name, tmp_path)).eval()
    together = score_batched(model, SEQUENCES, "cpu", 0.7)
    for values, sequence in zip(together, SEQUENCES, strict=True):
        with torch.no_grad():
            table = (model(torch.tensor([sequence])).logits[0, :-1] / 0.7).log_softmax(-1)
        assert values == pytest.approx(
            [float(table[place, token]) for place, token in enumerate(sequence[1:])], abs=1e-5
        )
