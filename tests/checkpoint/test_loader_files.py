"""What has no end under every name that loaders look for: forty gigabytes of holes, a pipe, a device."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.checkpoint.document import parse_object
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.limited_child import run_limited

NAMES = """
    config.json model.safetensors.index.json pytorch_model.bin.index.json consolidated.safetensors.index.json params.json
    generation_config.json adapter_config.json adapter_model.safetensors adapter_model.bin hf_quant_config.json
    quantize_config.json quant_config.json preprocessor_config.json processor_config.json video_preprocessor_config.json
    tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt merges.txt dict.txt
    tokenizer.model tekken.json spiece.model x.tiktoken chat_template.jinja chat_template.json
    additional_chat_templates/default.jinja model_index.json modules.json modeling.py pytorch_model.bin training_args.bin
    model-00001-of-00003.safetensors extra.safetensors trainer_state.json optimizer.pt scheduler.pt rng_state.pth state.json
    latest .metadata common.pt metadata.json latest_checkpointed_iteration.txt ckptcheck.manifest.json model.sig"""
OF_A_RUN = """
    latest_checkpointed_iteration.txt latest_train_state.pt run_config.yaml iter_0000100/.metadata iter_0000100/common.pt
    iter_0000100/metadata.json iter_0000100/run_config.yaml iter_0000100/train_state.pt iter_0000100/__0_0.distcp"""
PATIENCE = 120
"""Seconds after which a child is taken for hanging: a pipe is waited for without CPU."""


def put_sparse(path: Path, head: bytes = b"", size: int = 40 << 30) -> None:
    path.write_bytes(head)
    os.truncate(path, size)


KINDS: dict[str, Callable[[Path], object]] = {
    "a sparse file": put_sparse,
    "an object with a hole": lambda path: put_sparse(path, b'{"weight_map": {"', 120 << 20),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_takes_little_of_what_has_no_end(tmp_path: Path, kind: str) -> None:
    """40 GB under the name pytorch_model.bin.index.json were read whole, and 250 MB took twice their size."""
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "m"))
    run = Path(shutil.copytree(MEGATRON / "dense", tmp_path / "run"))

    def scan_each() -> str:
        signal.alarm(PATIENCE)
        crashed = []
        for target, names in ((folder, NAMES), (run, OF_A_RUN)):
            for path in map(target.joinpath, names.split()):
                path.parent.mkdir(exist_ok=True)
                kept = path.read_bytes() if path.exists() else None
                path.unlink(missing_ok=True)
                KINDS[kind](path)
                try:
                    crashed += [f"{path.name}: {error}" for error in ckptcheck.scan(target).crashed]
                except ckptcheck.CkptcheckError as error:
                    crashed += [error.message] if "\n" in error.message else []
                path.unlink()
                if kept is not None:
                    path.write_bytes(kept)
        return str(crashed)

    outcome = run_limited(scan_each, seconds=PATIENCE, memory=400 << 20)
    assert (outcome.fault, outcome.answer) == ("", "[]"), outcome


@pytest.mark.parametrize("value", ["[],", '"ab",', '{"a":1},'])
def test_json_of_many_values_is_not_built(value: str) -> None:
    """63 MB of empty lists took 1.7 GB, and are within the limit of a config."""

    def parse() -> str:
        raw = b'{"a": [' + value.encode() * (63_000_000 // len(value)) + b"0]}"
        return " ".join(defect.text for defect in parse_object(raw)[1])

    outcome = run_limited(parse)
    assert (outcome.fault, outcome.answer) == ("", "it holds more than 4,194,304 values, which no such file does")
