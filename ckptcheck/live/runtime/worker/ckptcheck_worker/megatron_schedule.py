"""Runs a rank's part of the model over sequences with Megatron's own schedules, with or without gradients.

Each microbatch is one sequence, all sequences are padded to the same length (with causal attention later tokens do not change
earlier ones), and data-parallel ranks take turns. Scoring and training split the work in the same way, so their logprobs are
equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch


def make_microbatches(
    sequences: Sequence[Sequence[int]], multiple: int, weights: Sequence[Any] | None
) -> list[dict[str, Any]]:
    """Return the microbatches of this data-parallel rank: sequence number, tokens [1, length], and the weight of each token.

    multiple: the length is padded to a multiple of it, because sequence-parallel ranks split the length. If the sequences do not
    divide evenly over the ranks, a rank repeats one with weight zero and number -1.
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
        token_weights = torch.zeros(1, length - 1)
        if number >= 0:
            token_weights[0, : len(sequence) - 1] = 1.0 if weights is None else weights[number]
        batches.append(
            {
                "number": number,
                "tokens": tokens.to(device),
                "weights": token_weights.to(device),
                "length": len(sequence),
            }
        )
    return batches


def run_schedule(
    model: Any,
    batches: Sequence[dict[str, Any]],
    vocabulary: int,
    *,
    train: bool,
    last_only: bool = False,
    full: bool = False,
    temperature: float = 1.0,
) -> Any:
    """Return, on the last stage, sequence number → logprob of each token after the first; {} on the other stages.

    last_only: return the logits of the last token instead. full: return the logprobs of the whole vocabulary instead. train:
    leave gradients in the model.
    """
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    def forward(batch: Iterator[dict[str, Any]], part: Any) -> Any:
        microbatch = next(batch)
        tokens = microbatch["tokens"]
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return part(tokens, positions, None), partial(loss_of, microbatch)

    def loss_of(microbatch: dict[str, Any], output: Any) -> Any:
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        logits = gather_from_tensor_model_parallel_region(output)[..., :vocabulary].float()
        if temperature != 1.0:
            logits = logits / temperature
        if last_only:
            return (
                logits.sum(),
                microbatch["weights"].sum().int(),
                (microbatch["number"], logits[0, microbatch["length"] - 1]),
            )
        if full:
            full_logprobs = logits[0, : microbatch["length"] - 1].log_softmax(-1)
            return logits.sum(), microbatch["weights"].sum().int(), (microbatch["number"], full_logprobs)
        logprobs = logits[:, :-1].log_softmax(-1).gather(-1, microbatch["tokens"][:, 1:, None]).squeeze(-1)
        number = (microbatch["weights"] > 0).sum().int()
        loss = -(logprobs * microbatch["weights"]).sum()
        return loss, number, (microbatch["number"], logprobs.detach()[0, : microbatch["length"] - 1])

    with torch.set_grad_enabled(train):
        results = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(batches),
            model=[model],
            num_microbatches=len(batches),
            seq_length=batches[0]["tokens"].shape[1],
            micro_batch_size=1,
            forward_only=not train,
        )
    return {number: values for number, values in results if number >= 0}
