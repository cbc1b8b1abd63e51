"""The adapter's matrices do not have the rank that its config declares.

## What it checks
`lora_A` has `r` rows and `lora_B` has `r` columns, as `adapter_config.json` gives `r` (or `rank_pattern` for a module).
Both have as many dimensions, and two at least.

## Why it matters
PEFT stops with a size mismatch. vLLM and SGLang scale by `lora_alpha / r`, so a wrong `r` changes the strength of the update.

## How to fix
Use the config of the training run.

## When it can be wrong
If `rank_pattern` holds a regular expression, modules that no plain name matches before it are not checked, because ckptcheck
does not run patterns from a checkpoint. With `target_parameters` any multiple of the rank passes, because experts are stored
together. A wrong `lora_alpha` or `alpha_pattern` changes the strength as well, but no shape shows it. Tools that fuse q, k
and v of an adapter store three times the rank: use `--ignore ADP004` if only their own loader reads it.

## Seen in
ymcui/Chinese-LLaMA-Alpaca#302 (a config with `r` 64 beside matrices of rank 8: PEFT stops), ymcui/Chinese-LLaMA-Alpaca#431 (the
adapter_config.json of another adapter, copied), huggingface/peft#3251 (flat shares of ZeRO-3 and FSDP)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import lora_rank
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated

HALF = re.compile(r"\.lora_(?:embedding_)?([AB])((?:\.(?!bias$)\w+){0,2})$")


@rule(
    "ADP004",
    "adapter-rank",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and ckpt.adapter is not None and ckpt.adapter.integer("r") is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.adapter is None:
        return
    odd: dict[tuple[int, int], list[str]] = {}
    shapes: list[str] = []
    flat: list[str] = []
    for name, tensor in ckpt.tensors.items():
        match = HALF.search(name)
        if match is None or 0 in tensor.shape:
            continue
        other = ckpt.tensors.get(f"{name[: match.start(1)]}{'B' if match[1] == 'A' else 'A'}{name[match.end(1) :]}")
        if len(tensor.shape) < 2:
            flat.append(name)
        elif other is not None and len(other.shape) > 1 and len(other.shape) != len(tensor.shape) != 2:
            shapes.append(name)
        if len(tensor.shape) != 2:
            continue
        rank, found = lora_rank(ckpt.adapter, name[: match.start()]), tensor.shape[0 if match[1] == "A" else 1]
        several = (
            bool(ckpt.adapter.value.get("target_parameters")) and rank and found % rank == 0
        )  # a rank for each expert
        if rank is not None and found != rank and not several:
            odd.setdefault((found, rank), []).append(name)
    for (found, rank), names in odd.items():
        yield Problem(
            f"adapter_config.json says rank {rank}, but {count(len(names), 'tensor has', 'tensors have')} rank "
            f"{found}: {join_truncated(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="use the config of the training run; if it says the same, these are one rank's share: gather them from all ranks"
            if rank % found == 0
            else "use the config of the training run",
        )
    if shapes:
        yield Problem(
            f"{count(len(shapes), 'matrix has', 'matrices have')} not as many dimensions as the other half of "
            f"the pair: {join_truncated(shapes)}; PEFT stops with a size mismatch",
            file=ckpt.tensor_to_file[shapes[0]],
            key=shapes[0],
            hint="save the adapter again; lora_A and lora_B of a linear layer have two dimensions",
        )
    if flat:
        yield Problem(
            f"{count(len(flat), 'matrix is', 'matrices are')} flat, as one rank's share is: {join_truncated(flat)}; PEFT stops "
            "with a size mismatch",
            file=ckpt.tensor_to_file[flat[0]],
            key=flat[0],
            hint="gather the parameters before saving, as ZeRO-3 and FSDP need it",
        )
