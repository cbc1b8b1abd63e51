"""The table of tokenizers that are read from vocab.json and merges.txt is that of transformers."""

from __future__ import annotations

import pytest

from ckptcheck.consumers.paired_tokenizers import PAIRED, reads_pair

PAIR = {"vocab.json", "merges.txt"}


def test_the_table_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", minversion="5.24", reason="make test-all installs it")
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    def is_paired(name: str) -> bool:
        found = tokenizer_class_from_name(name)
        return (
            isinstance(found, type)
            and issubclass(found, TokenizersBackend)
            and set((found.vocab_files_names or {}).values()) >= PAIR
        )

    named = {name for name in TOKENIZER_MAPPING_NAMES.values() if name is not None}
    named |= {name for name in dir(transformers) if name.endswith("Tokenizer")}
    assert {name.removesuffix("Fast") for name in named if is_paired(name)} == PAIRED.keys()
    for model_type, name in TOKENIZER_MAPPING_NAMES.items():
        assert reads_pair(None, model_type) is (name is not None and is_paired(name)), model_type


def test_the_class_that_the_config_names_counts() -> None:
    assert reads_pair("Qwen2TokenizerFast", None)
    assert reads_pair("GPT2Tokenizer", "xlm")
    assert not reads_pair("XLMTokenizer", "gpt2")
    assert not reads_pair(None, None)
