"""A chat model has no chat template.

## What it checks
There is a chat template (chat_template.jinja, additional_chat_templates, or in tokenizer_config.json), if generation or the
tokenizer ends at a token that only chats have (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`, …), or if the folder's name
contains instruct or chat. A template in chat_template.json counts only for a model with a processor: tokenizers do not read it.

## Why it matters
vLLM and SGLang then refuse `/v1/chat/completions`, and transformers `apply_chat_template`. Prompts formatted by hand differ from
those of the training. `save_pretrained` of the model alone does not save the tokenizer's files.

## How to fix
Save the tokenizer too: `tokenizer.save_pretrained(folder)`.

## When it can be wrong
Some models have no template on purpose: those for mistral-common (with a tekken.json the rule reports nothing), and those with an
encoder of their own in Python (DeepSeek-V3.2).

## Seen in
vllm-project/vllm#18140, vllm-project/vllm#39279
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
TURN_ENDS = frozenset(
    ["<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end_of_turn|>", "<|end|>", "<|return|>"]
)
CHAT_NAME = re.compile(r"(?i)(^|[-_.])(instruct|chat)($|[-_.@])")


@rule(
    "TOK005",
    "missing-chat-template",
    severity="info",
    on="tokenizer",
    when=lambda ckpt: (
        ckpt.config is not None and (ckpt.config.architecture or "").endswith(LANGUAGE_MODELS) and not ckpt.is_partial
    ),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
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
    own = tokenizer.eos_role
    ends = {own.token} if own is not None else set()
    ends |= {
        tokenizer.token_for(number)
        for file in ("generation_config.json", "config.json")
        for number in tokenizer.eos_ids(file)
    }
    name = PurePath(ckpt.target).name
    if chat_ends := sorted(end for end in ends if end in TURN_ENDS):
        reason = f"generation ends at {chat_ends[0]}, which only chats have"
    elif CHAT_NAME.search(name):
        reason = f"the model is called {name}"
    else:
        return
    yield Problem(
        f"there is no chat template, but {reason}; vLLM and SGLang refuse chats",
        file=next((file for file in ("tokenizer_config.json", "tokenizer.json") if file in ckpt.files), "config.json"),
        key="chat_template" if tokenizer.tokenizer_config is not None else None,
        hint="save the tokenizer too: tokenizer.save_pretrained(folder)",
    )
