"""The config declares multi-token prediction, but its weights are missing.

## What it checks
Where the config gives `num_nextn_predict_layers` (or `num_mtp_layers`, `mtp_num_hidden_layers`) above 0, there are tensors of
such a layer: numbered after the last ordinary one, or with `mtp`, `nextn` or `eh_proj` in the name.

## Why it matters
vLLM and SGLang with speculative decoding build the draft layer and accept 0.0 of its tokens, or stop. Decoding without it is
not affected. transformers drops these weights whenever it saves a model, so every round trip through it loses them.

## How to fix
Copy the weights from the original checkpoint, or set the number to 0.

## When it can be wrong
Many quantized releases drop these weights on purpose and keep the number in the config: decoding works, so this is only a
warning. The weights may also be in a separate repository, for the engine's draft model. Use `--ignore CFG006` in both cases.
A single tensor of such a layer silences the rule; it does not check whether the layer is complete.

## Seen in
vllm-project/vllm#35548 (GLM-5-NVFP4), THUDM/slime#2270
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

DECLARED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")


@rule(
    "CFG006",
    "missing-mtp",
    severity="warning",
    on="config",
    when=lambda ckpt: (
        bool(ckpt.components.layers) and (ckpt.config.integer(*DECLARED) or 0) > 0 and not ckpt.is_partial
    ),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if not ckpt.components.has_mtp:
        key = ckpt.config.key_path(*DECLARED)
        yield Problem(
            f"{key.rpartition('.')[2]} is {ckpt.config.integer(*DECLARED)}, but there are no tensors of multi-token prediction; "
            "speculative decoding with it would accept nothing",
            file=ckpt.config.file,
            key=key,
            hint="copy them from the original checkpoint, or set the number to 0",
        )
