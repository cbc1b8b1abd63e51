"""The chat template ends a turn with a token at which no engine stops.

## What it checks
At least one of the control tokens with which the chat template ends an answer ends generation: it is in generation_config.json (in
config.json if there is no such file), or it is the tokenizer's `eos_token`. A sandbox renders the template to find them. Tokens
that begin the next question end no answer, so the rule reports nothing if the template writes nothing else between the two.

## Why it matters
vLLM and SGLang stop at the ids of generation_config.json and at the tokenizer's `eos_token`, `generate` of transformers at those
of generation_config.json. A model that learned another end of its turn runs on to the longest length: it answers, then plays the
user. In reinforcement learning every rollout is cut off.

## How to fix
Add the token's id to `eos_token_id` in generation_config.json.

## When it can be wrong
It is a warning because of these cases:
- Base models borrow the template of their chat siblings and end with `<|endoftext|>` (Qwen2.5 and Qwen3 Base). They were not
  trained to end a turn, and whoever trains them to has to add the stop.
- If a template writes no end, a model may stop at the marker of the next question (GLM) or at an end that the template omits
  (Baichuan2). The files do not tell the two apart, so the rule misses a GLM that lost its stop.

## Seen in
Blaizzy/mlx-vlm#2112, marin-community/marin#4159, huggingface/open-r1#663
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint


@rule(
    "TOK004",
    "turn-end-not-a-stop",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: ckpt.tokenizer.template is not None and not ckpt.is_partial,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    end = tokenizer.turn_end
    if end is None or end not in tokenizer.ids:
        return
    stops = {number for number in tokenizer.eos_ids(tokenizer.generation_file) if number >= 0}
    own = tokenizer.eos_role
    names = {own.token} if own is not None else set()
    if stops or own is not None:
        after = tokenizer.turn_end_tokens
        if names.isdisjoint(after) and stops.isdisjoint(
            tokenizer.ids[token] for token in after if token in tokenizer.ids
        ):
            stop_names = sorted({*names, *(tokenizer.token_for(number) or f"{number}" for number in stops)} - {None})  # type: ignore[type-var]
            yield Problem(
                f"the chat template ends a turn with {clip(end, 40)} ({tokenizer.ids[end]:,}), but generation ends "
                f"only at {', '.join(clip(str(name), 40) for name in stop_names[:4])}; engines do not stop at the end of a turn",
                file=tokenizer.generation_file,
                key="eos_token_id",
                hint=f"add {tokenizer.ids[end]} to eos_token_id in generation_config.json",
            )
