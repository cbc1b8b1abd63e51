"""Describes the tokenizer of a checkpoint: its tokens, their roles, and the file that assigns each role.

Everything is read from the files; the library `tokenizers` and jinja run only in the child process of sandbox.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from ckptcheck.checkpoint.chat_template import ChatTemplate, Turns
from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.sentencepiece_file import PieceFile, read_piece_files
from ckptcheck.checkpoint.source import Source, read_document
from ckptcheck.checkpoint.special_tokens import (
    TokenRole,
    find_implicit_added_tokens,
    list_named_tokens,
    read_id_roles,
    read_token_roles,
)
from ckptcheck.checkpoint.template_files import Templates, read_templates
from ckptcheck.checkpoint.token_search import LONGEST_TOKEN, TokenSearch
from ckptcheck.checkpoint.vocabulary import (
    FILES,
    MOST_BYTES,
    AddedToken,
    Vocabulary,
    find_refusal,
    read_vocabulary,
)
from ckptcheck.linter.rule import Skip

STARTS = ("decoder_start_token_id", "forced_bos_token_id")
"""Settings of the tokens with which `generate` starts the decoder of an encoder-decoder model."""
RESERVED = re.compile(
    r"(?i)[<\[][|｜]?[^<>\[\]]*?(reserved|unused|dummy|place[▁_ -]?holder|extra_\d|special_\d)[^<>\[\]]*[|｜]?[>\]]"
    r"|\[PAD\d+\]|<pad_?\d+>"
)
"""<|reserved_special_token_3|>, [unused12], <unused5>, <|extra_1|>, <SPECIAL_9>, <|dummy_0|>, <｜place▁holder▁no▁1｜>."""
BRACKETED = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a checkpoint; each part is read when it is first asked for."""

    source: Source = field(repr=False)
    config: Config | None = field(repr=False, default=None)
    """config.json."""
    generation_config: Config | None = field(repr=False, default=None)
    """generation_config.json."""

    def _has(self, file: str) -> bool:
        return file in self.source.files and self.source.files[file].outside_link is None

    def _document(self, file: str) -> Config | None:
        return read_config(self.source, file) if self._has(file) else None

    @cached_property
    def tokenizer_config(self) -> Config | None:
        """tokenizer_config.json."""
        return self._document("tokenizer_config.json")

    @cached_property
    def special_tokens_map(self) -> Config | None:
        """special_tokens_map.json, which older versions of transformers also write."""
        return self._document("special_tokens_map.json")

    @cached_property
    def is_declared(self) -> bool:
        """Whether tokenizer_config.json has `added_tokens_decoder`: then transformers ignores the two older files.

        Without it, special_tokens_map.json overrides tokenizer_config.json, and added_tokens.json adds tokens
        (`_from_pretrained` of transformers 5.23, tokenization_utils_base.py).
        """
        return self.tokenizer_config is not None and "added_tokens_decoder" in self.tokenizer_config.value

    @property
    def older_names(self) -> Config | None:
        """special_tokens_map.json, where transformers reads it."""
        return self.special_tokens_map if not self.is_declared else None

    @cached_property
    def older_tokens(self) -> Config | None:
        """added_tokens.json, where transformers reads it."""
        return self._document("added_tokens.json") if not self.is_declared else None

    @cached_property
    def defects(self) -> dict[str, tuple[Defect, ...]]:
        """File → its defects, for files that are not the JSON that they should be."""
        parts = [self.vocabulary, self.tokenizer_config, self.older_names, self.older_tokens]
        found = {part.file: part.defects for part in parts if part is not None and not part.readable}
        return found | {each.file: each.defects for each in self.piece_files if each.defects}

    @cached_property
    def piece_files(self) -> tuple[PieceFile, ...]:
        """The SentencePiece models that a loader reads."""
        return read_piece_files(self.source, has_own_code=self.has_own_code)

    @property
    def has_own_code(self) -> bool:
        """Whether the repository brings its own tokenizer class, which ckptcheck never runs."""
        return self.tokenizer_config is not None and "auto_map" in self.tokenizer_config.value

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The tokens and their ids; None if ckptcheck can read them from no file."""
        file = next((name for name in FILES if self._has(name)), None)
        if file is None:
            return self._read_pieces()
        vocabulary = read_vocabulary(self.source, file)
        if not vocabulary.readable:
            return vocabulary
        declared = self.declared
        if file == "tokenizer.json":
            known = {token.content for token in vocabulary.added}
            return vocabulary.with_tokens(
                (token.content, token.special) for token in declared if token.content not in known
            )
        # Slow tokenizers use the declared ids.
        return replace(vocabulary, added=declared)

    @cached_property
    def refusal(self) -> str | None:
        """Why the library `tokenizers` does not load tokenizer.json; None if it does, or if there is no JSON to load.

        Raises Skip where the library is not installed or its child process cannot run.
        """
        vocabulary = self.vocabulary
        if vocabulary is None or vocabulary.file != "tokenizer.json":
            return None
        if not vocabulary.readable and all(defect.kind != "no-vocabulary" for defect in vocabulary.defects):
            return None
        return find_refusal(read_document(self.source, vocabulary.file, MOST_BYTES))

    def _read_pieces(self) -> Vocabulary | None:
        """Return the tokens of a SentencePiece model whose ids are the model's own, such as Llama's tokenizer.model."""
        found = [each for each in self.piece_files if not each.defects]
        if self.has_own_code or len(found) != 1 or not found[0].file.startswith("tokenizer.model"):
            return None
        pieces = found[0].pieces
        ids = {token: number for number, token in enumerate(pieces)}
        return Vocabulary(found[0].file, ids, len(pieces), added=self.declared, readable=True)

    @cached_property
    def declared(self) -> tuple[AddedToken, ...]:
        """The tokens that tokenizer_config.json (`added_tokens_decoder`), else added_tokens.json, adds, sorted by id."""
        tokens: dict[str, AddedToken] = {}
        older = self.older_tokens
        for name, number in older.value.items() if older is not None else ():
            if type(number) is int and number >= 0:
                tokens[name] = AddedToken(name, number, False)
        listed = self.tokenizer_config.value.get("added_tokens_decoder") if self.tokenizer_config is not None else None
        for key, token in listed.items() if isinstance(listed, dict) else ():
            content = token.get("content") if isinstance(token, dict) else None
            if isinstance(content, str) and key.isascii() and key.isdigit() and len(key) < 11:
                tokens[content] = AddedToken(content, int(key), token.get("special") is True)
        return tuple(sorted(tokens.values(), key=lambda token: token.id))

    @cached_property
    def implicit_added_tokens(self) -> dict[str, int]:
        """Token → id, for tokens that tokenizer_config.json names and tokenizer.json lacks: transformers adds them silently."""
        vocabulary, settings = self.vocabulary, self.tokenizer_config
        if vocabulary is None or vocabulary.file != "tokenizer.json" or settings is None:
            return {}
        return find_implicit_added_tokens(vocabulary, self._tokens_of_roles, settings.value)

    @property
    def _tokens_of_roles(self) -> dict[str, str]:
        return {role.name: role.token for role in self.roles if role.token is not None}

    @property
    def lost_added_tokens(self) -> list[str]:
        """The added tokens of tokenizer.json that a class that builds its tokenizer itself does not add, in transformers 5.

        `_from_pretrained` of transformers 5.24 (tokenization_utils_base.py): it takes those of the file only where
        tokenizer_config.json has no `added_tokens_decoder`.
        """
        if not self.is_declared or self.vocabulary is None or self.tokenizer_config is None:
            return []
        named = {
            *list_named_tokens(self._tokens_of_roles, self.tokenizer_config.value),
            *(each.content for each in self.declared),
        }
        return [token.content for token in self.vocabulary.added if token.content not in named]

    def require_vocabulary(self) -> Vocabulary:
        """Return the vocabulary. Raises Skip where the ids of its tokens are unknown."""
        if self.vocabulary is None:
            raise Skip(
                "needs the ids of all tokens, and only tokenizer.json, tokenizer.model, vocab.json and vocab.txt are read for them"
            )
        if not self.vocabulary.readable:
            raise Skip(f"needs the ids of all tokens, but {self.vocabulary.file} could not be read")
        return self.vocabulary

    @cached_property
    def _known(self) -> Vocabulary:
        """The vocabulary; where it cannot be read, only the added tokens that tokenizer_config.json declares."""
        if self.vocabulary is not None and self.vocabulary.readable:
            return self.vocabulary
        return Vocabulary("tokenizer_config.json", added=self.declared)

    @property
    def ids(self) -> dict[str, int]:
        """Token → id, as far as they are known."""
        return self._known.ids

    @cached_property
    def added_tokens(self) -> dict[str, AddedToken]:
        """The added tokens, by content."""
        return {token.content: token for token in self._known.added}

    @cached_property
    def max_id(self) -> int:
        """The highest id; -1 where there is none."""
        return max(self.ids.values(), default=-1)

    def token_for(self, number: int) -> str | None:
        """Return the token with this id."""
        return self._known.id_to_token.get(number)

    def is_special(self, number: int) -> bool:
        """Whether the token with this id is marked special, or a file gives it a role by name."""
        token = self.token_for(number)
        return token is not None and token in self.special_tokens

    def is_reserved(self, number: int) -> bool:
        """Whether the token with this id is a reserved placeholder, judging by its name."""
        token = self.token_for(number) or ""
        # Bounded, because the search takes time quadratic in the length.
        return len(token) <= LONGEST_TOKEN and RESERVED.fullmatch(token) is not None

    @cached_property
    def special_tokens(self) -> frozenset[str]:
        """Tokens that are marked special or have a role by name."""
        marked = {token.content for token in self.added_tokens.values() if token.special}
        return frozenset(
            marked | {role.token for role in self.roles if role.token is not None and role.token in self.ids}
        )

    @cached_property
    def _special_search(self) -> TokenSearch:
        return TokenSearch(self.special_tokens)

    @cached_property
    def roles(self) -> tuple[TokenRole, ...]:
        """The roles for which special_tokens_map.json, where transformers reads it, else tokenizer_config.json, gives tokens."""
        return read_token_roles(
            [part for part in (self.older_names, self.tokenizer_config) if part is not None], self.ids
        )

    @cached_property
    def id_roles(self) -> tuple[TokenRole, ...]:
        """The roles for which generation_config.json and config.json give ids; a list of ids gives several."""
        return read_id_roles([part for part in (self.generation_config, self.config) if part is not None])

    @property
    def generation_file(self) -> str:
        """The only file from which transformers reads the stop tokens: generation_config.json, else config.json.

        `adjust_generation_fn` (transformers 5.23, generation/utils.py): a generation_config.json that is not JSON is
        ignored as if it were absent; one that names no stop token means that there is none.
        """
        own = self.generation_config
        return own.file if own is not None and own.readable else "config.json"

    def eos_ids(self, file: str) -> frozenset[int]:
        """Return the EOS ids that a file gives; empty where it gives none or the id is unknown."""
        parts = [role for role in (*self.roles, *self.id_roles) if role.name.startswith("eos") and role.file == file]
        return frozenset(role.id for role in parts if role.id is not None)

    @cached_property
    def eos_role(self) -> TokenRole | None:
        """The `eos_token` of the tokenizer; None where its files name none."""
        return next((role for role in self.roles if role.name == "eos_token"), None)

    @cached_property
    def templates(self) -> dict[str, ChatTemplate]:
        """The chat templates by name, the default one first. Bytes that are not UTF-8 are replaced."""
        variables = {role.name: role.token for role in self.roles if role.token is not None}
        return {
            one.name: ChatTemplate(one.file, one.key, one.text, variables, one.undecodable)
            for one in self.template_files.written
        }

    @cached_property
    def template_files(self) -> Templates:
        """The texts of the chat templates and the files that hold them, with faults in how they are stored."""
        return read_templates(self.source, self.tokenizer_config, self.config)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template that transformers uses unless another is named, or tools are given and there is one for tools."""
        return self.templates.get("default")

    @cached_property
    def _turns(self) -> Turns | None:
        ids = [role.id for role in (*self.id_roles, *self.roles) if role.name.startswith("eos")]
        stops = {token for number in ids if number is not None and (token := self.token_for(number))}
        return Turns(self.template, self._special_search, stops) if self.template is not None else None

    @property
    def turn_end(self) -> str | None:
        """The control token that ends an assistant's turn; None where ordinary text ends it or nothing shows it."""
        return self._turns.end if self._turns is not None else None

    @property
    def turn_end_tokens(self) -> tuple[str, ...]:
        """All control tokens at the end of an assistant's turn: an engine that stops at any of them stops in time."""
        return self._turns.ends if self._turns is not None else ()

    @cached_property
    def template_tokens(self) -> dict[str, str]:
        """Token → whether a template that transformers picks by default emits it, or only mentions it."""
        if not self.templates:
            return {}
        reasons = {}
        # Many templates contain runs of blanks, and plain words that Gemma and Phi add as tokens: neither shows a use.
        tokens = {token for token in self.added_tokens if token in self.special_tokens or BRACKETED.fullmatch(token)}
        search = TokenSearch(tokens | self.special_tokens)
        emitted = search.find_contained(self.template.rendered.values() if self.template is not None else ())
        for_tools = self.templates["tool_use"].rendered.get("with tools", "") if "tool_use" in self.templates else ""
        emitted_for_tools = search.find_contained([for_tools])
        mentioned = search.find_contained([self.template.literals] if self.template is not None else ())
        for token in sorted(emitted | emitted_for_tools | mentioned, key=self.ids.__getitem__):
            if token in emitted:
                reasons[token] = "the chat template emits it"
            elif token in emitted_for_tools:
                reasons[token] = "the chat template for tools emits it"
            else:
                reasons[token] = "the chat template mentions it"
        return reasons

    @cached_property
    def _used(self) -> dict[int, str]:
        """Id → the first reason why the model needs it."""
        # Reversed, so that the first reason stays.
        return dict(reversed(list(self._reasons())))

    def _reasons(self) -> Iterator[tuple[int, str]]:
        for role in (*self.id_roles, *self.roles):
            if role.id is not None:
                yield role.id, f"it is {role.name} of {role.file}"
        if self.turn_end in self.ids:
            yield self.ids[self.turn_end], "it ends the assistant's turn in the chat template"
        for token, reason in self.template_tokens.items():
            yield self.ids[token], reason
        # Last, because Marian starts with padding, whose row is zero.
        for part in (self.generation_config, self.config):
            for name in STARTS:
                if part is not None and type(number := part.get(name)) is int:
                    yield number, f"it is {name} of {part.file}"

    def why_used(self, number: int) -> str | None:
        """Return why the model needs the token with this id; None if no file shows that it does. May raise Skip (template)."""
        return self._used.get(number)
