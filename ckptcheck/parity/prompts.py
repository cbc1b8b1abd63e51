"""What engines are asked: made-up ids, or text in the model's own chat template and tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.passages import PASSAGES
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    import tokenizers

    from ckptcheck.checkpoint.checkpoint import Checkpoint

Data = Literal["real", "synthetic"]
SECONDS, MEMORY = 8, 1 << 29
"""What rendering a conversation may take."""
MARK = "\uf8ff"
"""What the user says where a conversation is rendered once, to be filled in many times; of a private area of Unicode."""
Message = dict[str, str]


@dataclass(frozen=True)
class Reader:
    """Turns text into a model's tokens. template: of the chat, None where there is none; variables: special tokens by name."""

    tokenizer: tokenizers.Tokenizer
    template: str | None
    variables: dict[str, str]

    @classmethod
    def of(cls, ckpt: Checkpoint) -> Reader:
        """Read a checkpoint's tokenizer. Raises CkptcheckError where there is none that can be read."""
        import tokenizers

        if "tokenizer.json" not in ckpt.source.files:
            raise CkptcheckError(f"{ckpt.target} has no tokenizer.json, so text cannot be made into tokens")
        size = ckpt.source.files["tokenizer.json"].size
        try:
            read = tokenizers.Tokenizer.from_buffer(ckpt.source.read("tokenizer.json", 0, size))
        except Exception as error:  # the library raises bare Exception
            raise CkptcheckError(f"tokenizer.json of {ckpt.target} cannot be read: {error}") from error
        from ckptcheck.checkpoint.tokenizer import Tokenizer

        template = Tokenizer.read(ckpt).template
        return cls(
            read, template.text if template is not None else None, template.variables if template is not None else {}
        )

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text as it stands: none is added at its ends."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chat(self, messages: Sequence[Message]) -> str:
        """Return what the chat template makes of a conversation, up to where the answer begins; without one, the words alone.

        Raises CkptcheckError where the template refuses it or takes too long.
        """
        from ckptcheck.checkpoint.confined import run_confined

        if self.template is None:
            return "\n\n".join(message["content"] for message in messages)
        given = {"messages": list(messages), "add_generation_prompt": True, "tools": None, "documents": None}
        try:
            answer = run_confined(
                "templates",
                seconds=SECONDS,
                memory=MEMORY,
                templates={"": self.template},
                conversations=[{"name": "asked", "input": given}],
                variables=self.variables,
            )
        except Skip as skip:
            raise CkptcheckError(f"the chat template could not be rendered: {skip}") from skip
        texts = [line["text"] for line in answer.lines if "text" in line]
        if not texts:
            why = next(
                (str(line[key]) for line in answer.lines for key in ("refused", "failed", "broken") if key in line), ""
            )
            raise CkptcheckError(f"the chat template does not take the conversation{': ' + why if why else ''}")
        return str(texts[0])


def synthetic(vocabulary: int, length: int, number: int, *, seed: int = 0) -> list[tuple[int, ...]]:
    """Return sequences of ordinary ids, the same every time. The first few ids are left out: padding and control tokens."""
    lowest = min(8, vocabulary // 4)
    found = []
    for each in range(number):
        source = random.Random(f"{seed}-{length}-{each}")
        found.append(tuple(source.randrange(lowest, vocabulary) for _ in range(length)))
    return found


def real(reader: Reader, length: int, number: int) -> list[tuple[int, ...]]:
    """Return conversations of at most `length` tokens that open an answer, as long as whole words allow.

    The built-in passages are put one after the other until they fill it, in another order for every prompt. Raises
    CkptcheckError where there is no room for a single word.
    """
    before, found, after = reader.chat([{"role": "user", "content": MARK}]).partition(MARK)
    if not found:
        raise CkptcheckError("the chat template drops what the user says")
    return [_filled(reader, length, place, before, after) for place in range(number)]


def _filled(reader: Reader, length: int, place: int, before: str, after: str) -> tuple[int, ...]:
    first = place % len(PASSAGES)
    words: list[str] = []
    for passage in cycle([*PASSAGES[first:], *PASSAGES[:first]]):
        words += passage.split(" ")
        if len(words) > length:  # a word is a token at least
            break
    fewest, most = 0, len(words)
    found: tuple[int, ...] = ()
    while fewest < most:  # the most words that fit
        middle = (fewest + most + 1) // 2
        tokens = reader.tokens(before + " ".join(words[:middle]) + after)
        if len(tokens) <= length:
            fewest, found = middle, tokens
        else:
            most = middle - 1
    if not found:
        raise CkptcheckError(f"{length} tokens are too few for a conversation in this chat template")
    return found


def from_file(path: Path, reader: Reader | None) -> list[tuple[int, ...]]:
    """Read prompts: JSON lines with `tokens`, `messages`, `prompt` or `text`, or lines of plain text, which are put into the chat.

    `prompt` and `text` are taken as they stand unless they are lists of messages. Raises CkptcheckError with the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CkptcheckError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    found = [_read(line, reader, f"line {number} of {path}") for number, line in zip(count(1), lines) if line.strip()]
    if not found:
        raise CkptcheckError(f"{path} holds no prompts")
    return found


def _read(line: str, reader: Reader | None, where: str) -> tuple[int, ...]:
    said: Any = {"messages": [{"role": "user", "content": line}]}
    if line.lstrip().startswith("{"):
        try:
            said = json.loads(line)
        except ValueError as error:
            raise CkptcheckError(f"{where} is no JSON: {error}") from error
    if isinstance(tokens := said.get("tokens"), list):
        if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
            raise CkptcheckError(f"the tokens in {where} are not all token ids")
        return tuple(tokens)
    if reader is None:
        raise CkptcheckError(f"{where} is text, and the checkpoint has no tokenizer.json")
    talk = said.get("messages", said.get("prompt", said.get("text")))
    if isinstance(talk, list) and all(isinstance(each, dict) and isinstance(each.get("content"), str) for each in talk):
        return reader.tokens(reader.chat([{**each, "role": str(each.get("role", "user"))} for each in talk]))
    if not isinstance(talk, str):
        raise CkptcheckError(f"{where} has neither tokens nor messages nor a text")
    return reader.tokens(talk)


def some(found: Sequence[tuple[int, ...]], number: int) -> list[tuple[int, ...]]:
    """Return so many prompts, from the beginning again where there are too few."""
    return list(islice(cycle(found), number))
