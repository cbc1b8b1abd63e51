"""The tokenizer beside the weights: its tokens, the parts they play, and where each part is said.

Read from the files alone; the library `tokenizers` and jinja run only in the child process of `confined`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.appended import appended_tokens
from ckptcheck.checkpoint.chat_template import ChatTemplate, first_marker
from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.special_tokens import Role, named, numbered
from ckptcheck.checkpoint.template_files import Templates, read_templates
from ckptcheck.checkpoint.turns import Turns
from ckptcheck.checkpoint.vocabulary import FILES, Added, Vocabulary, read_vocabulary
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

STARTS = ("decoder_start_token_id", "forced_bos_token_id")
"""The tokens that `generate` gives an encoder-decoder's decoder to begin with."""
RESERVED = re.compile(
    r"(?i)[<\[][|｜]?[^<>\[\]]*?(reserved|unused|dummy|place[▁_ -]?holder|extra_\d|special_\d)[^<>\[\]]*[|｜]?[>\]]"
    r"|\[PAD\d+\]|<pad_?\d+>"
)
"""<|reserved_special_token_3|>, [unused12], <unused5>, <|extra_1|>, <SPECIAL_9>, <|dummy_0|>, <｜place▁holder▁no▁1｜>."""


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a checkpoint, each part read when it is first asked for."""

    source: Source = field(repr=False)
    config: Config | None = field(repr=False, default=None)

    @classmethod
    def read(cls, ckpt: Checkpoint) -> Tokenizer:
        """Look at a checkpoint that has a tokenizer.json or a tokenizer_config.json."""
        return cls(ckpt.source, ckpt.config)

    def _has(self, file: str) -> bool:
        return file in self.source.files and self.source.files[file].leaves is None

    def _document(self, file: str) -> Config | None:
        return read_config(self.source, file) if self._has(file) else None

    @cached_property
    def tokenizer_config(self) -> Config | None:
        """tokenizer_config.json."""
        return self._document("tokenizer_config.json")

    @cached_property
    def generation_config(self) -> Config | None:
        """generation_config.json."""
        return self._document("generation_config.json")

    @cached_property
    def special_tokens_map(self) -> Config | None:
        """special_tokens_map.json, which older versions of transformers wrote as well."""
        return self._document("special_tokens_map.json")

    @cached_property
    def is_declared(self) -> bool:
        """Whether tokenizer_config.json has `added_tokens_decoder`: transformers then reads none of the two older files.

        Without it, special_tokens_map.json overrides tokenizer_config.json, and added_tokens.json adds tokens
        (`_from_pretrained` of transformers 5.23, tokenization_utils_base.py).
        """
        return self.tokenizer_config is not None and "added_tokens_decoder" in self.tokenizer_config.value

    @property
    def _older_names(self) -> Config | None:
        return self.special_tokens_map if not self.is_declared else None

    @cached_property
    def defects(self) -> dict[str, tuple[Defect, ...]]:
        """File → why it is not the JSON it should be."""
        parts = [self.vocabulary, self.tokenizer_config, self._older_names, self.generation_config]
        return {part.file: part.defects for part in parts if part is not None and not part.readable}

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The tokens and their ids; None where no file gives them in a form that is read."""
        file = next((name for name in FILES if self._has(name)), None)
        if file is None:
            return None
        found = read_vocabulary(self.source, file)
        if not found.readable:
            return found
        declared = self._declared
        if file == "tokenizer.json":
            known = {token.content for token in found.added}
            return found.with_tokens((token.content, token.special) for token in declared if token.content not in known)
        return replace(found, added=declared)  # slow tokenizers take the ids as they are given

    @cached_property
    def _declared(self) -> tuple[Added, ...]:
        """Tokens that tokenizer_config.json (`added_tokens_decoder`) adds, or else added_tokens.json, by id."""
        found: dict[str, Added] = {}
        older = self._document("added_tokens.json") if not self.is_declared else None
        for name, number in older.value.items() if older is not None else ():
            if type(number) is int and number >= 0:
                found[name] = Added(name, number, False)
        listed = self.tokenizer_config.value.get("added_tokens_decoder") if self.tokenizer_config is not None else None
        for key, token in listed.items() if isinstance(listed, dict) else ():
            content = token.get("content") if isinstance(token, dict) else None
            if isinstance(content, str) and key.isascii() and key.isdigit() and len(key) < 11:
                found[content] = Added(content, int(key), token.get("special") is True)
        return tuple(sorted(found.values(), key=lambda token: token.id))

    @cached_property
    def appended(self) -> dict[str, int]:
        """Token → id, of those that tokenizer_config.json names and tokenizer.json lacks: transformers appends them by itself."""
        vocabulary, settings = self.vocabulary, self.tokenizer_config
        if vocabulary is None or vocabulary.file != "tokenizer.json" or settings is None:
            return {}
        parts = {role.name: role.token for role in self.roles if role.token is not None}
        return appended_tokens(vocabulary, parts, settings.value)

    def require_vocabulary(self) -> Vocabulary:
        """Return the vocabulary. Raises Skip where the ids of its tokens are not known."""
        if self.vocabulary is None:
            raise Skip(
                "needs the ids of all tokens, and only tokenizer.json, vocab.json and vocab.txt are read for them"
            )
        if not self.vocabulary.readable:
            raise Skip(f"needs the ids of all tokens, but {self.vocabulary.file} could not be read")
        return self.vocabulary

    @cached_property
    def _known(self) -> Vocabulary:
        """The vocabulary; where none can be read, only the added tokens that tokenizer_config.json declares."""
        if self.vocabulary is not None and self.vocabulary.readable:
            return self.vocabulary
        return Vocabulary("tokenizer_config.json", added=self._declared)

    @property
    def ids(self) -> dict[str, int]:
        """Token → id, as far as they are known."""
        return self._known.ids

    @cached_property
    def added(self) -> dict[str, Added]:
        """The added tokens, by content."""
        return {token.content: token for token in self._known.added}

    @cached_property
    def max_id(self) -> int:
        """The highest id, -1 where there is none."""
        return max(self.ids.values(), default=-1)

    def name(self, number: int) -> str | None:
        """Return the token with this id."""
        return self._known.contents.get(number)

    def is_special(self, number: int) -> bool:
        """Whether the token with this id is marked special, or has a part by name."""
        token = self.name(number)
        return token is not None and token in self.special

    def is_reserved(self, number: int) -> bool:
        """Whether the token with this id is a place kept free, to judge by its name."""
        return RESERVED.fullmatch(self.name(number) or "") is not None

    @cached_property
    def special(self) -> frozenset[str]:
        """Tokens that are marked special or have a part by name."""
        marked = {token.content for token in self.added.values() if token.special}
        return frozenset(
            marked | {role.token for role in self.roles if role.token is not None and role.token in self.ids}
        )

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The parts that special_tokens_map.json, where it is read, or else tokenizer_config.json names tokens for."""
        return named([part for part in (self._older_names, self.tokenizer_config) if part is not None], self.ids)

    @cached_property
    def settings(self) -> tuple[Role, ...]:
        """The parts that generation_config.json and config.json give ids for; a list of ids gives several."""
        return numbered([part for part in (self.generation_config, self.config) if part is not None])

    @property
    def generation_file(self) -> str:
        """The one file that transformers takes the ends of a generation from: config.json only where there is no other.

        `adjust_generation_fn` (transformers 5.23, generation/utils.py): a generation_config.json that is not JSON is passed
        over like one that is not there; one that names no end means that there is none.
        """
        own = self.generation_config
        return own.file if own is not None and own.readable else "config.json"

    def eos(self, file: str) -> frozenset[int]:
        """Return the ids that a file gives as the end of a text; empty where it does not say or the id is not known."""
        parts = [role for role in (*self.roles, *self.settings) if role.name.startswith("eos") and role.file == file]
        return frozenset(role.id for role in parts if role.id is not None)

    @cached_property
    def tokenizer_eos(self) -> Role | None:
        """The end of a text by the tokenizer's own word."""
        return next((role for role in self.roles if role.name == "eos_token"), None)

    @cached_property
    def templates(self) -> dict[str, ChatTemplate]:
        """The chat templates by name, the default one first. A file that is not UTF-8 is read with substitutes."""
        variables = {role.name: role.token for role in self.roles if role.token is not None}
        return {
            one.name: ChatTemplate(one.file, one.key, one.text, variables, one.undecodable)
            for one in self.template_files.written
        }

    @cached_property
    def template_files(self) -> Templates:
        """Where the chat templates stand, and what is wrong with how they do."""
        return read_templates(self.source, self.tokenizer_config, self.config)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template that counts where none is asked for by name, and no tools are given to one for tools."""
        return self.templates.get("default")

    @cached_property
    def _turns(self) -> Turns | None:
        said = [role.id for role in (*self.settings, *self.roles) if role.name.startswith("eos")]
        stops = {token for number in said if number is not None and (token := self.name(number))}
        return Turns(self.template, self.special, stops) if self.template is not None else None

    @property
    def turn_end(self) -> str | None:
        """The control token that closes an assistant's turn; None where it cannot be told or is ordinary text."""
        return self._turns.end if self._turns is not None else None

    @property
    def after_answer(self) -> tuple[str, ...]:
        """All control tokens that end an assistant's turn: whatever stops at one of them, stops."""
        return self._turns.ends if self._turns is not None else ()

    @cached_property
    def generation_start(self) -> str | None:
        """The control token with which the prompt for an answer begins."""
        return first_marker(self.template.generation_prompt, self.special) if self.template is not None else None

    @cached_property
    def template_tokens(self) -> dict[str, str]:
        """Token → how it is known that a template which transformers takes by itself uses it: rendered, or in its texts only."""
        if not self.templates:
            return {}
        found = {}
        rendered = list(self.template.rendered.values()) if self.template is not None else []
        literals = self.template.literals if self.template is not None else ""
        for_tools = self.templates["tool_use"].rendered.get("with tools", "") if "tool_use" in self.templates else ""
        for token in sorted(self.special | self.added.keys(), key=self.ids.__getitem__):
            if token not in self.special and not re.fullmatch(r"[<\[].+[>\]]", token):
                continue  # a run of blanks or a word that Gemma and Phi add
            if any(token in text for text in rendered):
                found[token] = "the chat template emits it"
            elif token in for_tools:
                found[token] = "the chat template for tools emits it"
            elif token in literals:
                found[token] = "the chat template mentions it"
        return found

    @cached_property
    def _used(self) -> dict[int, str]:
        """Id → the first reason why the model needs it."""
        return dict(reversed(list(self._reasons())))  # the first reason counts

    def _reasons(self) -> Iterator[tuple[int, str]]:
        for role in (*self.settings, *self.roles):
            if role.id is not None:
                yield role.id, f"it is {role.name} of {role.file}"
        if self.turn_end in self.ids:
            yield self.ids[self.turn_end], "it ends the assistant's turn in the chat template"
        for token, reason in self.template_tokens.items():
            yield self.ids[token], reason
        for part in (self.generation_config, self.config):  # last: Marian starts with padding, whose row is zero
            for name in STARTS:
                if part is not None and type(number := part.get(name)) is int:
                    yield number, f"it is {name} of {part.file}"

    def used(self, number: int) -> str | None:
        """Return why the model needs the token with this id, None if nothing here says so. May raise Skip (template)."""
        return self._used.get(number)
