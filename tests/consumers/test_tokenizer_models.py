"""The table of tokenizers that build their own kind of model is that of transformers, tried on tokenizers of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcheck.consumers.tokenizer_models import CLASSES, KINDS, UNBOUND_TYPES, find_built_model

TEXT = "the quick brown fox and the lazy dog said hello to the world"
SPECIAL = [
    "<pad>", "</s>", "<unk>", "<s>", "[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", "<|startoftext|>", "<mask>",
    "<cls>", "<eos>", "<bos>",
]  # fmt: skip
"""The special tokens that one class or another asks for."""
GENERIC = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend"}


def write_tokenizer(folder: Path, kind: str) -> list[int]:
    """Train a tokenizer on TEXT, and return how it reads it."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    if kind == "BPE":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "Unigram":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>")
    else:
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=SPECIAL)
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT, add_special_tokens=False).ids
    return ids


def read_with(folder: Path, class_name: str, **config: object) -> list[int] | None:
    """Return how AutoTokenizer reads TEXT with a class; None where it refuses the folder."""
    from transformers import AutoTokenizer

    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        ids: list[int] = AutoTokenizer.from_pretrained(str(folder)).encode(TEXT, add_special_tokens=False)
    except Exception:  # whatever stops it
        return None
    return ids


@pytest.mark.slow
def test_a_class_reads_no_other_kind(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    expected = {kind: write_tokenizer(tmp_path / kind, kind) for kind in KINDS}
    found: dict[str, set[str]] = {}
    for name in dir(transformers):
        tokenizer_class = getattr(transformers, name) if name.endswith("Tokenizer") else None
        if isinstance(tokenizer_class, type) and issubclass(tokenizer_class, TokenizersBackend):
            found[name] = {kind for kind in KINDS if read_with(tmp_path / kind, name) == expected[kind]}
    listed = {name: kind for kind, names in CLASSES.items() for name in names.split()}
    assert len(listed) == sum(len(names.split()) for names in CLASSES.values())
    assert {name for name, kinds in found.items() if len(kinds) > 1} & listed.keys() == set()
    for name, kind in listed.items():
        assert found[name] <= {kind}, name
    # The others write tokens in a way of their own, or ask for special tokens.
    assert sum(found[name] == {kind} for name, kind in listed.items()) > 35
    assert {name for name, kinds in found.items() if len(kinds) == 1} <= listed.keys()


def test_model_types_whose_class_does_not_count() -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    from transformers.models.auto import tokenization_auto as auto

    generic = {model_type for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items() if name in GENERIC}
    assert generic | auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS == {*UNBOUND_TYPES.split()}


@pytest.mark.slow
def test_a_class_is_not_taken_for_these_types(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    ids = write_tokenizer(tmp_path / "BPE", "BPE")
    assert read_with(tmp_path / "BPE", "BertTokenizer", model_type="llama") not in (None, ids)
    assert read_with(tmp_path / "BPE", "BertTokenizer", model_type="granite") == ids


def test_the_name_of_a_class() -> None:
    assert find_built_model("BertTokenizerFast", "llama") == "WordPiece"
    assert find_built_model("BertTokenizer", None) == "WordPiece"
    assert find_built_model("BertTokenizer", "granite") is None
    assert find_built_model("PreTrainedTokenizerFast", "llama") is None
