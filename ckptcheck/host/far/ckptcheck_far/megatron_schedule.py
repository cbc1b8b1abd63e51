"""Runs a rank's part of the model over sequences by Megatron's own schedules, with or without gradients.

Each microbatch is one sequence, all are filled up to the same length (causal attention: what follows a token does not
change it), and data-parallel ranks take turns. Scoring and training cut the work alike, so their logprobs are equal to
the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch


def share(sequences: Sequence[Sequence[int]], multiple: int, weights: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Return this data-parallel rank's microbatches: number of the sequence, tokens [1, length], what each token counts.

    multiple: sequence-parallel ranks cut the length, so it has to be a multiple of their number. Where the sequences do
    not come out even, a rank repeats one that counts nothing; its number is -1.
    """
    from megatron.core import parallel_state

    rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    longest = max(map(len, sequences))
    length = -(-longest // multiple) * multiple
    device = torch.cuda.current_device()
    batches = []
    for begin in range(0, len(sequences), ranks):
        number = begin + rank if begin + rank < len(sequences) else -1
        sequence = sequences[max(number, 0)]
        tokens = torch.zeros(1, length, dtype=torch.long)
        tokens[0, : len(sequence)] = torch.tensor(sequence)
        counts = torch.zeros(1, length - 1)
        if number >= 0:
            counts[0, : len(sequence) - 1] = 1.0 if weights is None else weights[number]
        batches.append(
            {"number": number, "tokens": tokens.to(device), "counts": counts.to(device), "real": len(sequence)}
        )
    return batches


def run(
    model: Any,
    batches: Sequence[dict[str, Any]],
    vocabulary: int,
    *,
    train: bool,
    last_only: bool = False,
    full: bool = False,
    temperature: float = 1.0,
) -> Any:
    """Return, on the last stage, number of the sequence → logprob of each token after the first; else {}.

    last_only: the logits of the token after the last are wanted instead; full: the logprobs of the whole vocabulary. train:
    gradients are left in the model.
    """
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    def forward(batch: Iterator[dict[str, Any]], part: Any) -> Any:
        now = next(batch)
        tokens = now["tokens"]
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return part(tokens, positions, None), partial(judged, now)

    def judged(now: dict[str, Any], output: Any) -> Any:
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        logits = gather_from_tensor_model_parallel_region(output)[..., :vocabulary].float()  # without the padding rows
        if temperature != 1.0:
            logits = logits / temperature
        if last_only:
            return logits.sum(), now["counts"].sum().int(), (now["number"], logits[0, now["real"] - 1])
        if full:
            whole = logits[0, : now["real"] - 1].log_softmax(-1)
            return logits.sum(), now["counts"].sum().int(), (now["number"], whole)
        chosen = logits[:, :-1].log_softmax(-1).gather(-1, now["tokens"][:, 1:, None]).squeeze(-1)
        number = (now["counts"] > 0).sum().int()
        loss = -(chosen * now["counts"]).sum()
        return loss, number, (now["number"], chosen.detach()[0, : now["real"] - 1])

    with torch.set_grad_enabled(train):
        found = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(batches),
            model=[model],
            num_microbatches=len(batches),
            seq_length=batches[0]["tokens"].shape[1],
            micro_batch_size=1,
            forward_only=not train,
        )
    return {number: values for number, values in found if number >= 0}
