"""Generation stops at another token than the one the tokenizer calls the end.

## What it checks
The `eos_token` of the tokenizer is among the `eos_token_id` of generation_config.json (of config.json where that gives
none), or what is there ends the assistant's turn in the chat template. The first token of the next turn is such an end only
where the template writes no other (GLM).

## Why it matters
Each consumer asks another file. `generate` of transformers stops at generation_config.json alone and runs on to the
longest length; trainers take the tokenizer's `eos_token` to find where an answer ends, mask it wrongly, and a reward for
finished answers is never given. vLLM and SGLang take both, so in a rollout all looks well.

## How to fix
Write the id of the token with which the model was trained to end into both, or a list that has it into
generation_config.json.

## When it can be wrong
A model may end a document and a turn with different tokens. Where generation_config.json has the one that the template
ends a turn with (Kimi K2), or lists both (Llama 3, Qwen2.5, Gemma), nothing is said.

## Seen in
QwenLM/Qwen3#927, Blaizzy/mlx-vlm#2112
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.rule import Skip


@rule(
    "TOK003",
    "eos-disagreement",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    file = next((name for name in ("generation_config.json", "config.json") if tokenizer.eos(name)), None)
    own = tokenizer.tokenizer_eos
    if file is None or own is None:
        return
    if own.id is None:
        tokenizer.require_vocabulary()  # it is known and has no such token: TOK009
        return
    stops = tokenizer.eos(file)
    if own.id in stops:
        return
    try:
        ends = {tokenizer.ids[token] for token in tokenizer.after_answer if token in tokenizer.ids}
    except Skip:
        ends = set()
    if not ends & stops:
        listed = ", ".join(
            f"{number:,}" + (f" ({clipped(name, 40)})" if (name := tokenizer.name(number)) else "")
            for number in sorted(stops)[:4]
        )
        yield Problem(
            f"generation ends at {listed}, but the tokenizer's eos_token is {clipped(own.token or '', 40)} ({own.id:,})",
            file=file,
            key="eos_token_id",
            hint="give both the token with which the model was trained to end, or list it beside the other",
        )
