"""Builds prompts from random ids, or from text with the model's own chat template and tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.sample_texts import SAMPLE_TEXTS
from ckptcheck.text.file_io import read_whole_file

if TYPE_CHECKING:
    import tokenizers

    from ckptcheck.checkpoint.checkpoint import Checkpoint

Data = Literal["real", "synthetic"]
SECONDS, MEMORY = 8, 1 << 29
"""Limits for rendering all conversations at once: seconds of processor time, and bytes."""
LARGEST_FILE = 1 << 28
"""Bytes of the largest file of prompts that is read."""
MARK = "\uf8ff"
"""Placeholder of the user's text: the template renders one conversation, which then takes many texts. A private character."""
Message = dict[str, str]


@dataclass(frozen=True)
class PromptTokenizer:
    """Turns text into a model's tokens."""

    tokenizer: tokenizers.Tokenizer
    template: str | None
    """The chat template; None where the checkpoint has none."""
    variables: dict[str, str]
    """Variables of the template: the special tokens by name."""

    @classmethod
    def of(cls, ckpt: Checkpoint) -> PromptTokenizer:
        """Read a checkpoint's tokenizer. Raises CkptcheckError where there is none, or it cannot be read."""
        from ckptcheck.checkpoint.open_tokenizer import open_tokenizer, read_tokenizer

        if "tokenizer.json" not in ckpt.source.files:
            raise CkptcheckError(f"{ckpt.target} has no tokenizer.json, so text cannot be made into tokens")
        try:
            raw = read_tokenizer(ckpt.source)
        except OSError as error:
            raise CkptcheckError(
                f"tokenizer.json of {ckpt.target} cannot be read: {error.strerror or error}"
            ) from error
        tokenizer = open_tokenizer(raw, f"tokenizer.json of {ckpt.target}")
        from ckptcheck.checkpoint.tokenizer import Tokenizer

        template = Tokenizer(ckpt.source, ckpt.config, ckpt.generation_config).template
        return cls(
            tokenizer,
            template.text if template is not None else None,
            template.variables if template is not None else {},
        )

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, without special tokens at its ends."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Render a conversation with the chat template, up to the beginning of the answer; without a template, join its texts.

        Raises CkptcheckError where the template refuses the conversation or takes too long.
        """
        if self.template is None:
            return "\n\n".join(message["content"] for message in messages)
        try:
            ((text, reason),) = render_conversations(self.template, self.variables, [messages], generation_prompt=True)
        except Skip as skip:
            raise CkptcheckError(f"the chat template could not be rendered: {skip}") from skip
        if text is None:
            raise CkptcheckError(f"the chat template does not take the conversation{': ' + reason if reason else ''}")
        return text


def render_conversations(
    template: str, variables: dict[str, str], conversations: Sequence[Sequence[Message]], *, generation_prompt: bool
) -> list[tuple[str | None, str]]:
    """Render conversations in one sandboxed process. Raises Skip where that cannot be done here.

    Returns the text of each, None where the template refuses it, and the reason.
    """
    from ckptcheck.checkpoint.sandbox import run_sandboxed

    asked = [
        {"messages": list(messages), "add_generation_prompt": generation_prompt, "tools": None, "documents": None}
        for messages in conversations
    ]
    lines = run_sandboxed(
        "templates",
        seconds=SECONDS,
        memory=MEMORY,
        templates={"": template},
        conversations=[{"name": str(number), "input": each} for number, each in enumerate(asked)],
        variables=variables,
    ).lines
    texts = {line["conversation"]: str(line["text"]) for line in lines if "text" in line}
    reasons = {
        line.get("conversation"): str(line[key])
        for line in lines
        for key in ("refused", "failed", "broken")
        if key in line
    }
    return [(texts.get(name), reasons.get(name, reasons.get(None, ""))) for name in map(str, range(len(asked)))]


def make_synthetic_prompts(vocabulary: int, length: int, number: int, *, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of random ids without the first few, which are padding and control tokens. Equal seeds give equal prompts."""
    lowest = min(8, vocabulary // 4)
    prompts = []
    for place in range(number):
        generator = random.Random(f"{seed}-{length}-{place}")
        prompts.append(tuple(generator.randrange(lowest, vocabulary) for _ in range(length)))
    return prompts


def make_text_prompts(reader: PromptTokenizer, length: int, number: int) -> list[tuple[int, ...]]:
    """Return conversations of at most `length` tokens that end where the answer begins.

    The user's text consists of the built-in passages, in another order for every prompt, up to the last whole word that fits.
    Raises CkptcheckError where not a single word fits.
    """
    before, mark, after = reader.render_chat([{"role": "user", "content": MARK}]).partition(MARK)
    if not mark:
        raise CkptcheckError("the chat template drops what the user says")
    return [_fill_conversation(reader, length, place, before, after) for place in range(number)]


def _fill_conversation(reader: PromptTokenizer, length: int, place: int, before: str, after: str) -> tuple[int, ...]:
    first = place % len(SAMPLE_TEXTS)
    words: list[str] = []
    for passage in cycle([*SAMPLE_TEXTS[first:], *SAMPLE_TEXTS[:first]]):
        words += passage.split(" ")
        # a word has at least one token
        if len(words) > length:
            break
    fewest, most = 0, len(words)
    prompt: tuple[int, ...] = ()
    # find the largest number of words that fits, by bisection
    while fewest < most:
        middle = (fewest + most + 1) // 2
        tokens = reader.tokenize(before + " ".join(words[:middle]) + after)
        if len(tokens) <= length:
            fewest, prompt = middle, tokens
        else:
            most = middle - 1
    if not prompt:
        raise CkptcheckError(f"{length} tokens are too few for a conversation in this chat template")
    return prompt


def read_prompts_file(path: Path, reader: PromptTokenizer | None) -> list[tuple[int, ...]]:
    """Read prompts from JSON lines with `tokens`, `messages`, `prompt` or `text`, or from lines of plain text.

    Plain text and `messages` go through the chat template, and so do `prompt` and `text` if they are lists of messages; a text in
    them is tokenised unchanged. Raises CkptcheckError that names the line.
    """
    try:
        lines = read_whole_file(path, LARGEST_FILE).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CkptcheckError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    prompts = [
        _parse_prompt(line, reader, f"line {number} of {path}") for number, line in zip(count(1), lines) if line.strip()
    ]
    if not prompts:
        raise CkptcheckError(f"{path} holds no prompts")
    return prompts


def _parse_prompt(line: str, reader: PromptTokenizer | None, where: str) -> tuple[int, ...]:
    entry: Any = {"messages": [{"role": "user", "content": line}]}
    if line.lstrip().startswith("{"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CkptcheckError(f"{where} is no JSON: {error}") from error
    if isinstance(tokens := entry.get("tokens"), list):
        if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
            raise CkptcheckError(f"the tokens in {where} are not all token ids")
        return tuple(tokens)
    if reader is None:
        raise CkptcheckError(f"{where} is text, and the checkpoint has no tokenizer.json")
    content = entry.get("messages", entry.get("prompt", entry.get("text")))
    if isinstance(content, list) and all(
        isinstance(message, dict) and isinstance(message.get("content"), str) for message in content
    ):
        messages = [{**message, "role": str(message.get("role", "user"))} for message in content]
        return reader.tokenize(reader.render_chat(messages))
    if not isinstance(content, str):
        raise CkptcheckError(f"{where} has neither tokens nor messages nor a text")
    return reader.tokenize(content)


def repeat_to_count(found: Sequence[tuple[int, ...]], number: int) -> list[tuple[int, ...]]:
    """Return `number` prompts, repeated from the beginning where there are too few."""
    return list(islice(cycle(found), number))
