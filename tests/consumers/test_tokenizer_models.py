"""The table of tokenizers that build their own kind of model is that of transformers, tried on tokenizers of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcheck.checkpoint.source import Folder
from ckptcheck.checkpoint.vocabulary import cut_texts
from ckptcheck.consumers.tokenizer_models import GENERIC, KINDS, find_built_class, find_built_model, find_built_steps

TEXT = "the quick brown fox and the lazy dog said hello to the world"
SPECIAL = [
    "<pad>", "</s>", "<unk>", "<s>", "[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", "<|startoftext|>", "<mask>",
    "<cls>", "<eos>", "<bos>",
]  # fmt: skip
"""The special tokens that one class or another asks for."""
TABLE = json.loads((Path(find_built_class.__code__.co_filename).parent / "tokenizer_classes.json").read_bytes())
WORDS = ["In 2023", "it's IT'S", "one\n\ntwo", "a  b", "snake_case camelCase", "naïve café"]


def write_tokenizer(folder: Path, kind: str) -> list[int]:
    """Train a tokenizer on TEXT, and return how it reads it."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    if kind == "BPE":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=[*pre_tokenizers.ByteLevel.alphabet(), *"▁ \nïé"]
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
    listed = {name: facts["kind"] for name, facts in TABLE["classes"].items()}
    assert {name for name, kinds in found.items() if len(kinds) > 1} & listed.keys() == set()
    for name, kind in listed.items():
        assert found[name] <= {kind}, name
    # The others write tokens in a way of their own, or ask for special tokens.
    assert sum(found[name] == {kind} for name, kind in listed.items()) > 35
    assert {name for name, kinds in found.items() if len(kinds) == 1} <= listed.keys()


@pytest.mark.slow
def test_the_table_is_what_transformers_has() -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    from learn_tokenizer_classes import learn_table

    assert {name: each for name, each in TABLE.items() if name != "transformers"} == learn_table()


@pytest.mark.slow
def test_a_class_is_not_taken_for_these_types(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    ids = write_tokenizer(tmp_path / "BPE", "BPE")
    assert read_with(tmp_path / "BPE", "BertTokenizer", model_type="llama") not in (None, ids)
    assert read_with(tmp_path / "BPE", "BertTokenizer", model_type="granite") == ids


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}, {"legacy": True}])
def test_a_class_cuts_texts_with_its_steps(tmp_path: Path, settings: dict[str, bool]) -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path / "BPE", "BPE")
    tried = 0
    for name in (name for name, facts in TABLE["classes"].items() if "steps" in facts):
        config = {"tokenizer_class": name, **settings}
        (tmp_path / "BPE" / "tokenizer_config.json").write_text(json.dumps(config))
        try:
            loaded = AutoTokenizer.from_pretrained(str(tmp_path / "BPE"))
            expected = [loaded.tokenize(text) for text in WORDS]
        except Exception:  # it asks for another setting, or for boxes with the text
            continue
        if any(loaded.unk_token in tokens for tokens in expected):  # which token that is, the config says
            continue
        if (taken := find_built_class(name, None, byte_level=True)) is None:
            assert name == "LlamaTokenizer"
            continue
        steps = find_built_steps(taken, config)
        assert steps is not None
        found = cut_texts(Folder(tmp_path / "BPE", "", frozenset({"tokenizer.json"})), [steps], WORDS)
        assert found == [expected], name
        loaded.save_pretrained(str(tmp_path / name))
        saved, saved_config = (
            json.loads((tmp_path / name / f"tokenizer{each}.json").read_text()) for each in ("", "_config")
        )
        again = find_built_steps(taken, saved_config)
        assert again is not None
        assert (saved["normalizer"], saved["pre_tokenizer"]) == (again["normalizer"], again["pre_tokenizer"]), name
        tried += 1
    assert tried > 15, tried


def test_the_class_that_is_taken() -> None:
    def find(named: str | None, model_type: str | None, byte_level: bool = False) -> str | None:
        return find_built_class(named, model_type, byte_level=byte_level)

    assert find("BertTokenizerFast", "llama") == find("BertTokenizer", None) == "BertTokenizer"
    assert find_built_model("BertTokenizer") == "WordPiece"
    assert find("BertTokenizer", "granite") is find("PreTrainedTokenizerFast", "llama") is None
    assert find("LlamaTokenizer", "qwen2") == find("Qwen2TokenizerFast", "qwen2") == "Qwen2Tokenizer"
    assert find("LlamaTokenizerFast", "llama", byte_level=True) is None
    assert find("LlamaTokenizerFast", "llama") == find("LlamaTokenizer", None) == "LlamaTokenizer"
    assert find(None, "qwen3") == "Qwen2Tokenizer"
    assert {find(None, each) for each, name in TABLE["types"].items() if name in GENERIC} == {None}


def test_the_steps_that_settings_choose() -> None:
    def scheme(**settings: bool) -> str:
        steps = find_built_steps("LlamaTokenizer", settings)
        assert steps is not None
        return str(steps["pre_tokenizer"]["prepend_scheme"])

    assert (scheme(), scheme(legacy=True), scheme(legacy=True, add_prefix_space=False)) == ("first", "always", "never")
    assert find_built_steps("T5Tokenizer", {}) is None
