"""What every config class of transformers refuses, against transformers itself."""

from __future__ import annotations

import pytest

from ckptcheck.checkpoint.config_refusals import COMPUTED
from tests.conftest import needs


def test_keys_that_every_class_computes() -> None:
    needs("transformers")
    from transformers import LlamaConfig, PreTrainedConfig

    readonly = {
        name
        for name in dir(PreTrainedConfig)
        if isinstance(own := getattr(PreTrainedConfig, name, None), property) and own.fset is None
    }
    assert {*COMPUTED} == readonly
    for name in COMPUTED:
        with pytest.raises(AttributeError):
            LlamaConfig.from_dict({name: True})
