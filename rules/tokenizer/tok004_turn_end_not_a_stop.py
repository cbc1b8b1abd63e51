"""The chat template ends a turn with a token at which nothing stops.

## What it checks
Of the control tokens with which the chat template ends an answer, at least one is an end of generation: in
generation_config.json (in config.json where there is no such file), or as the tokenizer's `eos_token`. The template is rendered
in a sandbox for that. What begins the next question ends no answer, so nothing is said where the template writes nothing
else between the two.

## Why it matters
vLLM and SGLang stop at the ids of generation_config.json and at the tokenizer's `eos_token`, `generate` of transformers
at those of generation_config.json. A model that has learned to end its turn otherwise goes on to the longest length:
it answers, then plays the user. In reinforcement learning every rollout is cut off.

## How to fix
Add the token's id to `eos_token_id` in generation_config.json.

## When it can be wrong
Base models that lend the template of their chat siblings and end with `<|endoftext|>` (Qwen2.5 and Qwen3 Base): they
were not trained to end a turn, and whoever trains them to has to add the stop. That is why this is a warning. Where a
template writes no end, a model may stop at the next question's marker (GLM) or at an end that the template leaves out
(Baichuan2): the files do not tell the two apart, so a GLM that has lost its stop is not found.

## Seen in
Blaizzy/mlx-vlm#2112, marin-community/marin#4159, huggingface/open-r1#663
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped


@rule(
    "TOK004",
    "turn-end-not-a-stop",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and ckpt.tokenizer.template is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    end = tokenizer.turn_end
    if end is None or end not in tokenizer.ids:
        return
    stops = {number for number in tokenizer.eos(tokenizer.generation_file) if number >= 0}
    own = tokenizer.tokenizer_eos
    names = {own.token} if own is not None else set()
    if stops or own is not None:
        after = tokenizer.after_answer
        if names.isdisjoint(after) and stops.isdisjoint(
            tokenizer.ids[token] for token in after if token in tokenizer.ids
        ):
            listed = sorted({*names, *(tokenizer.name(number) or f"{number}" for number in stops)} - {None})  # type: ignore[type-var]
            yield Problem(
                f"the chat template ends a turn with {clipped(end, 40)} ({tokenizer.ids[end]:,}), but generation ends "
                f"only at {', '.join(clipped(str(name), 40) for name in listed[:4])}; a chat does not stop there",
                file=tokenizer.generation_file,
                key="eos_token_id",
                hint=f"add {tokenizer.ids[end]} to eos_token_id in generation_config.json",
            )
