"""The tokenizer's class builds something else than tokenizer.json has, or transformers 4 refuses it.

## What it checks
The class that `AutoTokenizer` of transformers 5 takes (`tokenizer_class` in tokenizer_config.json, or else in config.json, or the
class of the model type) builds what tokenizer.json has:
- its kind of model: BPE, Unigram or WordPiece;
- for a class that builds a BPE and its steps: the tokens of a few words, numbers, lines and signs are the same with the
  `normalizer`, the `pre_tokenizer` and the settings of the model that the class builds, and with those of the file;
- all its added tokens: the class adds only those that `added_tokens_decoder` lists, where tokenizer_config.json has that setting.

And transformers 4.57 can read what transformers 5 wrote (else an info): it has no class `TokenizersBackend`, and no list for
`extra_special_tokens`.

Classes that read tokenizer.json as it is (`PreTrainedTokenizerFast`, `TokenizersBackend`), the repository's own code (`auto_map`),
model types for which `AutoTokenizer` does not take the class that the file names, and whole words (WordLevel) are left out.

## Why it matters
transformers 5 takes the tokens from tokenizer.json and gives them to the class. A `BertTokenizer` makes a WordPiece of the tokens
of a BPE, and reads most words as unknown; a `T5Tokenizer` stops with a TypeError; a `GPT2Tokenizer` drops the rule by which numbers
are cut into digits, so that the model reads tokens that it hardly saw in training. vLLM loads tokenizers with transformers. SGLang
does so too, and then puts the file's pre-tokenizer in place of one of another type. transformers 4 read tokenizer.json as it was,
so that trainer and engine may see other tokens.

## How to fix
Name `PreTrainedTokenizerFast`, which reads tokenizer.json as it is, or the class that the tokenizer was saved with.

## When it can be wrong
- With transformers 4 it does no harm.
- A plugin may register another class under the name; another transformers 5 than 5.24 may build other steps.
- `--ignore TOK019`, or a reason under `[ignore]`, silences it.

## Seen in
- jingyaogong/minimind#578, agentscope-ai/QwenPaw#3084, hiyouga/LlamaFactory#9699, unslothai/unsloth#8444 (TokenizersBackend);
  ml-explore/mlx-lm#661 (a list of extra_special_tokens)
- huggingface/transformers#45812: all Granite models, numbers; huggingface/transformers#44294: OLMo 3, lines
- allenai/open-instruct#1896: a trainer cut 9.8% more tokens than pretraining
- Tried with the classes of transformers 5.24 that build a model, on small tokenizers of each kind: none reads another kind
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.consumers.tokenizer_models import (
    FLAGS,
    KINDS,
    VLLM_GENERIC_TYPES,
    find_built_class,
    find_built_model,
    find_built_steps,
    list_own_tokens,
)
from ckptcheck.text.formatting import count, join_words

if TYPE_CHECKING:
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.checkpoint.tokenizer import Tokenizer
    from ckptcheck.checkpoint.vocabulary import Vocabulary

TEXTS = (
    "In 2023", "x = 12345.67", "it's", "IT'S DONE", "one\n\ntwo", "end.\n\n", "f(x):\n    return x", "a  b", "tab\tnext",
    "snake_case", "camelCase", "<think>\nOkay", '(a)[b]{c}!="d"', "https://a.b/c?d=e", "naïve café", "東京は日本", "Привет мир",
)  # fmt: skip
"""Ordinary texts, none of which begins with a space: there the classes and the files of Llama 2 differ without harm."""
OF_TRANSFORMERS_5 = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend", "MistralCommonBackend")
TEXT_FLAGS = ("continuing_subword_prefix", "end_of_word_suffix")
HINT_FOR_TYPE = (
    "load it with PreTrainedTokenizerFast itself: for this model_type AutoTokenizer takes no class that a file names"
)
HINT = "name PreTrainedTokenizerFast, which reads tokenizer.json as it is, or the class that it was saved with"


@rule("TOK019", "other-tokenizer-class", severity="warning", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    tokenizer, model_type = ckpt.tokenizer, ckpt.config.model_type if ckpt.config is not None else None
    vocabulary = tokenizer.vocabulary
    if tokenizer.tokenizer_config is not None:
        yield from _find_unread_by_older(tokenizer.tokenizer_config)
    if vocabulary is None or vocabulary.kind not in KINDS or tokenizer.has_own_code:
        return
    file, key, named = next(
        (
            (part.file, "tokenizer_class", name)
            for part in (tokenizer.tokenizer_config, ckpt.config)
            if part is not None and isinstance(name := part.value.get("tokenizer_class"), str)
        ),
        ("config.json", "model_type", None),
    )
    taken = find_built_class(named, model_type, byte_level=vocabulary.is_byte_level)
    if taken is None:
        return
    hint = HINT if find_built_class("PreTrainedTokenizerFast", model_type, byte_level=False) is None else HINT_FOR_TYPE
    kind, readers, keepers = find_built_model(taken), ["AutoTokenizer of transformers 5"], ["tokenizer.json"]
    (keepers if model_type in VLLM_GENERIC_TYPES else readers).append("vLLM")
    name = named if named is not None and named.removesuffix("Fast") == taken else taken
    if kind != vocabulary.kind:
        harm = "refuses it" if kind == "Unigram" else "reads other tokens"
        message = f"{name} builds a {kind} model, and tokenizer.json has a {vocabulary.kind} model: {readers[0]} {harm}"
        yield Problem(message, file=file, key=key, hint=hint)
        return
    built = find_built_steps(taken, tokenizer.tokenizer_config.value if tokenizer.tokenizer_config is not None else {})
    # A file without steps cuts nothing that a class could cut in another way.
    if built is None or not (vocabulary.steps["normalizer"] or vocabulary.steps["pre_tokenizer"]):
        return
    faults = [_compare(tokenizer, vocabulary, built, readers, keepers)]
    if lost := [token for token in tokenizer.lost_added_tokens if token not in list_own_tokens(taken)]:
        faults.append(
            f"adds only the tokens that added_tokens_decoder lists: {join_words([*readers, 'SGLang'])} cut "
            f"{count(len(lost), 'added token')} of tokenizer.json into pieces ({clip(', '.join(map(repr, lost)), 60)})"
        )
    for fault in faults:
        if fault is not None:
            yield Problem(f"{name} {fault}", file=file, key=key, hint=hint)


def _find_unread_by_older(config: Config) -> Iterator[Problem]:
    """Yield what transformers 4.57.6 stops at: with a ValueError for the class, with an AttributeError for the list."""
    named, more = config.value.get("tokenizer_class"), config.value.get("extra_special_tokens")
    reasons = [f"they have no class {named}"] if named in OF_TRANSFORMERS_5 else []
    changes = ["name PreTrainedTokenizerFast instead"] if reasons else []
    if isinstance(more, list):
        reasons.append("they read no list in extra_special_tokens")
        changes.append("move the list to additional_special_tokens")
    if reasons:
        yield Problem(
            f"transformers 4.57, and vLLM or SGLang on it, refuse this tokenizer: {join_words(reasons)}",
            file=config.file,
            key="tokenizer_class" if named in OF_TRANSFORMERS_5 else "extra_special_tokens",
            severity="info",
            hint=f"if transformers 4 is to load it too, {join_words(changes)}; transformers 5 reads that as well",
        )


def _compare(
    tokenizer: Tokenizer, vocabulary: Vocabulary, built: dict[str, Any], readers: list[str], keepers: list[str]
) -> str | None:
    """Return what a class replaces, and a text that it cuts in another way; None where it cuts all as the file does.

    built: the steps of the class. readers, keepers: who takes these, and who those of the file, besides SGLang.

    Raises Skip where the library `tokenizers` cannot run.
    """
    from ckptcheck.checkpoint.vocabulary import cut_texts

    own = vocabulary.steps
    other = [part for part in ("normalizer", "pre_tokenizer") if own[part] != built[part]]
    other += [f"model.{flag}" for flag in FLAGS if (own["model"].get(flag) or None) != built["model"].get(flag)]
    if not other:
        return None
    settings = tokenizer.tokenizer_config.value if tokenizer.tokenizer_config is not None else {}
    steps = [_with_all_flags(each) for each in (_as_in_transformers_4(own, settings), built, _as_in_sglang(own, built))]
    cut = cut_texts(tokenizer.source, steps, TEXTS)
    for text, wanted, found, in_sglang in zip(TEXTS, *cut, strict=True) if len(cut) == len(steps) else ():
        if wanted != found:
            by_class, by_file = (
                (readers, [*keepers, "SGLang"]) if in_sglang == wanted else ([*readers, "SGLang"], keepers)
            )
            return (
                f"replaces {', '.join(other)} of tokenizer.json: {join_words(by_class)} cut {text!r} into {_show(found)}, "
                f"{join_words(by_file)} into {_show(wanted)}"
            )
    return None


def _with_all_flags(steps: dict[str, Any]) -> dict[str, Any]:
    """Name each flag of the model, so that none is left from the steps before; without chance."""
    flags = {flag: steps["model"].get(flag) or (None if flag in TEXT_FLAGS else False) for flag in FLAGS}
    return {**steps, "model": {**flags, "dropout": None}}


def _as_in_transformers_4(own: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's steps with the `add_prefix_space` that transformers 4 sets in the pre-tokenizer.

    `PreTrainedTokenizerFast.__init__` of transformers 4.57, tokenization_utils_fast.py.
    """
    first = own["pre_tokenizer"]
    if not isinstance(first, dict) or "add_prefix_space" not in first:
        return own
    return {**own, "pre_tokenizer": {**first, "add_prefix_space": settings.get("add_prefix_space") is True}}


def _as_in_sglang(own: dict[str, Any], built: dict[str, Any]) -> dict[str, Any]:
    """Return the steps of SGLang: those of the class, with the file's pre-tokenizer where that is of another type.

    `_fix_v5_tokenizer_components` of SGLang 0.5.23, srt/utils/hf_transformers/tokenizer.py.
    """
    of_file, of_class = own["pre_tokenizer"], built["pre_tokenizer"]
    is_restored = isinstance(of_file, dict) and of_class and of_file.get("type") != of_class["type"]
    return {**built, "pre_tokenizer": of_file} if is_restored else built


def _show(tokens: list[str]) -> str:
    return clip("|".join(tokens), 60)
