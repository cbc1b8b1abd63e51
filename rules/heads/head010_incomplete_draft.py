"""A draft model lacks its head or its table of tokens, and no engine can derive them.

## What it checks
A draft model whose config gives a `draft_vocab_size` (EAGLE-3, DFlash) holds what an engine cannot take from the target model:
- the table `d2t`, where the draft predicts fewer tokens than `vocab_size` (in `transformer_layer_config` for speculators): entry n
  is how far the token lies above n in the target's vocabulary;
- `fc`, in `LlamaForCausalLMEagle3` whose `eagle_config` does not turn `use_aux_hidden_state` off;
- `lm_head.weight`, where it predicts fewer tokens, and for `LlamaForCausalLMEagle3` always (a warning), unless it is tied to the
  embedding.

## Why it matters
No engine refuses such a draft: it serves correct text, but the target accepts next to no drafted token, so that it is slower than
without a draft.
- Without `d2t`, vLLM and SGLang take draft token n for token n of the target (the DSpark drafts of vLLM stop with a ValueError).
- Without a head, vLLM takes the target's. That has as many rows as the target has tokens: where the draft has fewer, the first step
  stops with a shape mismatch. SGLang keeps a head of random numbers.

## How to fix
Copy `d2t` and the head from the training checkpoint: SpecForge and speculators write both.

## When it can be wrong
- The draft's tokens may be the first of the target's vocabulary: then write a `d2t` of zeros.
- A draft for vLLM only may leave out a head of all tokens: `--ignore HEAD010`, or a reason under `[ignore]`, silences it.

## Seen in
- sgl-project/sglang#27829, sgl-project/sglang#27908: an EAGLE-3 draft without a head, of which no token is accepted
- vLLM 0.32 (model_executor/models/llama_eagle3.py, `_maybe_share_lm_head` of v1/spec_decode/llm_base_proposer.py), SGLang 0.5.23
  (srt/models/llama_eagle3.py, srt/speculative/eagle_worker_v2.py)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config

TABLES = ("d2t", "draft_id_to_target_id")
"""Texts in the name of the table, as vLLM looks for them (`load_weights`)."""
FC = re.compile(r"(^|\.)fc\.")
SGLANG_EAGLE3 = "LlamaForCausalLMEagle3"


def _read_sizes(config: Config | None) -> tuple[int, int]:
    """Return the number of tokens of the draft and of its target; zeros where the config does not give both."""
    nested = config.get("transformer_layer_config") if config is not None else None
    holders = [part for part in (config.value if config is not None else None, nested) if isinstance(part, dict)]
    draft, target = (
        next((value for each in holders if type(value := each.get(key)) is int and value > 0), 0)
        for key in ("draft_vocab_size", "vocab_size")
    )
    return (draft, target) if draft and target else (0, 0)


@rule(
    "HEAD010",
    "incomplete-draft",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(ckpt.tensors) and _read_sizes(ckpt.config)[0] > 0,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    config = ckpt.config
    draft, target = _read_sizes(config)
    hint = "copy it from the training checkpoint"
    if draft < target and not any(table in name for name in ckpt.tensors for table in TABLES):
        yield Problem(
            f"draft_vocab_size is {draft:,} and vocab_size {target:,}, and there is no d2t: vLLM and SGLang take draft token n for "
            "token n of the target, and accepts almost none",
            file=config.file if config is not None else None,
            key="draft_vocab_size",
            hint=hint,
        )
    settings = config.get("eagle_config") if config is not None else None
    joins = not (isinstance(settings, dict) and settings.get("use_aux_hidden_state") is False)
    if config is not None and config.architecture == SGLANG_EAGLE3 and joins and not any(map(FC.search, ckpt.tensors)):
        yield Problem(
            "the draft has no fc, which joins hidden states of the target: vLLM and SGLang build it, and nothing fills it",
            file=config.file,
            key="architectures",
            hint=hint,
        )
    has_head = any("lm_head" in name for name in ckpt.tensors)
    if config is None or has_head or config.get("tie_word_embeddings") is True:
        return
    if is_small := draft < target:
        harm = f"vLLM takes the target's of {target:,} rows, and stops at the first draft; SGLang keeps one of random numbers"
    elif config.architecture == SGLANG_EAGLE3:
        harm = "SGLang keeps one of random numbers, and the target accepts next to none of its tokens; vLLM takes the target's"
    else:
        return
    yield Problem(
        f"the draft has no lm_head: {harm}",
        file=config.file,
        key="draft_vocab_size",
        severity="error" if is_small else "warning",
        hint=hint,
    )
