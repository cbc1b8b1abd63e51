"""A model for chat has no chat template.

## What it checks
There is a chat template (chat_template.jinja, additional_chat_templates, or in tokenizer_config.json) where generation or the
tokenizer ends at a token that only chats have (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`, …), or the folder is called
instruct or chat. A template in chat_template.json counts only where there is a processor: tokenizers do not read that file.

## Why it matters
vLLM and SGLang refuse `/v1/chat/completions` then, and transformers `apply_chat_template`. Whoever formats prompts by
hand formats them otherwise than in training. `save_pretrained` of the model alone leaves the tokenizer's files behind.

## How to fix
Save the tokenizer too: `tokenizer.save_pretrained(folder)`.

## When it can be wrong
Models that are used without a template on purpose: with mistral-common (a tekken.json is there, and nothing is said), or
with an encoder of their own in Python (DeepSeek-V3.2).

## Seen in
vllm-project/vllm#18140, vllm-project/vllm#39279
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
TURN_ENDS = frozenset(
    ["<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end_of_turn|>", "<|end|>", "<|return|>"]
)
CHAT_NAME = re.compile(r"(?i)(^|[-_.])(instruct|chat)($|[-_.@])")


@rule(
    "TOK005",
    "missing-chat-template",
    severity="info",
    when=lambda ckpt: (
        ckpt.tokenizer is not None
        and ckpt.config is not None
        and (ckpt.config.architecture or "").endswith(WITH_HEAD)
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    files = tokenizer.template_files
    if files.written or files.faults or "tekken.json" in ckpt.files:
        return
    if files.unread is not None:
        yield Problem(
            "it holds a chat template that only a processor reads, and this model has none; transformers finds no template",
            file=files.unread,
            key="chat_template",
            hint="write the template into chat_template.jinja",
        )
        return
    own = tokenizer.tokenizer_eos
    ends = {own.token} if own is not None else set()
    ends |= {
        tokenizer.name(number) for file in ("generation_config.json", "config.json") for number in tokenizer.eos(file)
    }
    name = PurePath(ckpt.target).name
    if found := sorted(end for end in ends if end in TURN_ENDS):
        why = f"generation ends at {found[0]}, which only chats have"
    elif CHAT_NAME.search(name):
        why = f"the model is called {name}"
    else:
        return
    yield Problem(
        f"there is no chat template, but {why}; vLLM and SGLang refuse chats",
        file="tokenizer_config.json" if tokenizer.tokenizer_config is not None else "tokenizer.json",
        key="chat_template" if tokenizer.tokenizer_config is not None else None,
        hint="save the tokenizer too: tokenizer.save_pretrained(folder)",
    )
