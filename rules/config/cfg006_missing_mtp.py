"""Multi-token prediction is declared, but its weights are not there.

## What it checks
Where the config gives `num_nextn_predict_layers` (or `num_mtp_layers`, `mtp_num_hidden_layers`) above 0, there are
tensors of such a layer: numbered on after the last ordinary one, or called `mtp`, `nextn`, `eh_proj`.

## Why it matters
vLLM and SGLang with speculative decoding build the draft layer and accept 0.0 of its tokens, or stop. Decoding
without it is not affected. transformers drops these weights whenever it saves a model, so any round trip through it
ends here.

## How to fix
Copy the weights from the original checkpoint, or set the number to 0.

## When it can be wrong
Many quantized releases drop these weights on purpose and leave the number in the config: decoding works, so it is a
warning only. They may also lie in a repository of their own, for the engine's draft model. `--ignore CFG006` in both
cases. One tensor of such a layer is enough to be quiet here; whether the layer is whole is not looked at.

## Seen in
vllm-project/vllm#35548 (GLM-5-NVFP4), THUDM/slime#2270
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

DECLARED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")


@rule(
    "CFG006",
    "missing-mtp",
    severity="warning",
    when=lambda ckpt: (
        bool(ckpt.anatomy.layers)
        and ckpt.config is not None
        and (ckpt.config.integer(*DECLARED) or 0) > 0
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    assert ckpt.config is not None
    if not ckpt.anatomy.has_mtp:
        key = ckpt.config.key(*DECLARED)
        yield Problem(
            f"{key.rpartition('.')[2]} is {ckpt.config.integer(*DECLARED)}, but there are no tensors of multi-token prediction; "
            "speculative decoding with it would accept nothing",
            file=ckpt.config.file,
            key=key,
            hint="copy them from the original checkpoint, or set the number to 0",
        )
