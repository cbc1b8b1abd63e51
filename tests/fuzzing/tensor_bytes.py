"""The door of tensors whose bytes are not those of their shape: real checkpoints, of which one file's header or data is changed.

`headers` makes up files; here the rest of a model is sound, so that the rules that read values go far into it.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiny
import tiny_quantized
from quantization_recipes import RECIPES

import ckptcheck
from ckptcheck.checkpoint.header import parse_header
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.tensor import BITS
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import write_checkpoint
from tests.fuzz import CHECKPOINTS, RULES, find_defect_kinds, refused
from tests.fuzzing.batches import copy_flat

TRAINED = ("tiny-llama", "tiny-qwen2-tied", "tiny-qwen3-moe")
"""Of these there is one more each, whose matrices are wide enough for the rules that judge values."""
VOCABULARY = 32
"""Rows of the embedding of a tiny model: no other side is as long."""
QUANTIZED = ("awq", "gptq", "ct-w4a16-asym", "ct-fp8-block", "ct-mxfp4", "modelopt-nvfp4")
HUGE = (2**31 - 1, 2**31, 2**32, 2**33, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def build_models(place: Path) -> list[Path]:
    """Write the models that are no fixtures, unless they are there; return the folders of all."""
    folder = place / "models"
    if not folder.is_dir():
        for base in TRAINED:
            config, shapes = _widen(*tiny.CHECKPOINTS[base][:2], 8, 512)
            drawn = {name: {"how": "trained", "shape": list(shape)} for name, shape in shapes.items()}
            write_checkpoint(
                {"base": base, "drawn": drawn, "json": {"config.json": config}}, folder / f"trained-{base}"
            )
        config, shapes = _widen(*tiny.CHECKPOINTS["tiny-llama"][:2], 2, VOCABULARY)
        for name in QUANTIZED:
            pack = next(iter(RECIPES[name].packs.values()))
            written = tiny_quantized.write(folder / name, config, shapes, RECIPES[name].config, pack)
            (folder / name / "config.json").write_text(json.dumps(written["config.json"]))
    return sorted([*CHECKPOINTS.iterdir(), *folder.iterdir()])


def _widen(
    config: dict[str, Any], shapes: tiny_quantized.Shapes, factor: int, rows: int
) -> tuple[dict[str, Any], tiny_quantized.Shapes]:
    """Multiply all sizes but the numbers of experts and heads, and give the vocabulary so many rows."""
    wider = {key: factor * config[key] for key in tiny_quantized.WIDER if key in config} | {"vocab_size": rows}
    return config | wider, {
        name: tuple(
            (rows if size == VOCABULARY else size)
            if side == 0 and name.endswith(tiny_quantized.COUNTED)
            else factor * size
            for side, size in enumerate(shape)
        )
        for name, shape in shapes.items()
    }


def change_tensors(raw: bytes, dice: random.Random) -> bytes:
    """Change the entries of tensors in a safetensors file, their data, or both."""
    start = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:start]), raw[start:]
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        names = [name for name in header if name != "__metadata__"]
        data = dice.choice(WAYS)(header, dice.choice(names), data, dice)
    text = json.dumps(header, separators=(",", ":"))
    if dice.random() < 0.02:
        text = text.replace(f'"shape":[{dice.choice(["8", "16", "32"])}', f'"shape":[{"9" * 4400}', 1)
    body = text.encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body + data


Header = dict[str, Any]


def _resize(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    """Give a tensor fewer or more bytes, and move all that follow: the file has no hole."""
    begin, end = header[name]["data_offsets"]
    width = max(BITS.get(header[name]["dtype"], 8) // 8, 1)
    change = dice.choice([1, -1]) * dice.choice([1, width, width, 8 * width, max(end - begin - width, 0), end - begin])
    new = min(max(begin, end + change), end + 4096)
    for other in header:
        if other not in ("__metadata__", name) and min(header[other]["data_offsets"]) >= end > begin:
            header[other]["data_offsets"] = [offset + new - end for offset in header[other]["data_offsets"]]
    header[name]["data_offsets"] = [begin, new]
    return data[:new] + data[end:] if new < end else data[:end] + dice.randbytes(new - end) + data[end:]


def _reshape(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    """Give a tensor another shape over the same bytes."""
    shape = list(header[name]["shape"])
    if not shape or dice.random() < 0.2:
        shape = dice.choice(
            [[], [0], [1], [0, 8], [8, 0], [2**33, 2**33], [1_000_000, 8], [8] * 40, [1] * 70, shape * 2]
        )
    else:
        place = dice.randrange(len(shape))
        old = shape[place] if isinstance(shape[place], int) else 1
        shape[place] = dice.choice(
            [old - 1, old + 1, old * 2, old // 2, 0, 1, -old, -1, dice.choice(HUGE), old + 0.0, None, True, str(old)]
            if dice.random() < 0.3
            else [old - 1, old + 1, old * 2, old // 2, 0, 1, old * 1000, dice.choice(HUGE)]
        )
        if dice.random() < 0.15:
            dice.shuffle(shape)
    header[name]["shape"] = shape
    return data


def _swap_dtype(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    header[name]["dtype"] = dice.choice([*BITS, "F128", "", "f32"])
    return data


def _move(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    """Give a tensor other offsets: none, reversed, those of another, in another, before it, behind the end."""
    begin, end = header[name]["data_offsets"]
    other = header[dice.choice([each for each in header if each != "__metadata__"])]["data_offsets"]
    some = dice.choice([1, 2, 4, 8, 64])
    header[name]["data_offsets"] = dice.choice(
        [
            [0, 0], [begin, begin], [end, begin], list(other), [other[0], other[0] + end - begin], [begin - some, end - some],
            [begin + some, end + some], [begin, end + some], [begin, end - some], [begin + some, end], [0, len(data)],
            [len(data), len(data) + end - begin], [begin, dice.choice(HUGE)], [dice.choice(HUGE), dice.choice(HUGE)],
        ]
    )  # fmt: skip
    return data


def _exchange(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    """Let two tensors lie where the other does."""
    other = dice.choice([each for each in header if each != "__metadata__"])
    one, two = header[name], header[other]
    one["data_offsets"], two["data_offsets"] = two["data_offsets"], one["data_offsets"]
    return data


def _tear(header: Header, name: str, data: bytes, dice: random.Random) -> bytes:
    """Leave a hole before a tensor, or cut the file off behind it."""
    at = min(max(header[name]["data_offsets"][0], 0), len(data))
    if dice.random() < 0.3:
        return data[: at + dice.choice([0, 1, 8])]
    some = dice.choice([1, 8, 4096])
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= at:
            entry["data_offsets"] = [offset + some for offset in entry["data_offsets"]]
    return data[:at] + bytes(some) + data[at:]


WAYS: tuple[Callable[[Header, str, bytes, random.Random], bytes], ...] = (
    _resize, _resize, _resize, _reshape, _reshape, _reshape, _swap_dtype, _move, _move, _exchange, _tear,
)  # fmt: skip


def check_tensor_bytes(seed: int, folder: Path) -> None:
    """Change a file of a model; scan the model with its values, and compare, describe and identify it at times."""
    dice = random.Random(seed)
    model = dice.choice(build_models(folder.parent))
    target = copy_flat(model, folder / "model")
    path = dice.choice(sorted(target.glob("*.safetensors")))
    raw = change_tensors(path.read_bytes(), dice)
    if dice.random() < 0.1:  # tensors of the same names in a second file
        path = path.with_name(dice.choice(["a.safetensors", "model.fp16.safetensors", "z.safetensors"]))
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run_rules(
            open_checkpoint(str(target), jobs=1, value_reader=ValuePass(jobs=1, takes_samples=True)), RULES
        )
        _judge(report, raw, is_loaded=(model / path.name).is_file())
        if seed % 4 == 0:
            _read_otherwise(model, target, dice)


def _judge(report: Report, raw: bytes, *, is_loaded: bool) -> None:
    """No rule crashes, nothing is incomplete, and what safetensors refuses is an error of the file. Raises AssertionError."""
    if is_loaded and parse_header("model.safetensors", len(raw), raw).unfit:
        assert "VAL001" not in report.passed, "it passed without a look at all values"
    assert not report.crashed, report.crashed
    assert report.error is None, report.error
    if (refusal := refused(raw)) is not None:
        assert any(finding.code == "ST001" for finding in report.findings), refusal
        assert report.exit_code() == 1
    else:
        assert find_defect_kinds(raw) <= {"misaligned-data"}


def _list_saves(model: Path, target: Path) -> list[Path]:
    """Give a model and its changed copy the places of two saves."""
    return [copy_flat(each, target.parent / f"checkpoint-{step}") for step, each in ((10, model), (20, target))]


def _read_otherwise(model: Path, target: Path, dice: random.Random) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ckptcheck.diff(model, target, jobs=1),
        lambda: ckptcheck.diff(target, model, jobs=1),
        lambda: ckptcheck.manifest(target, target.parent / "m.json", jobs=1),
        lambda: ckptcheck.identity(target, jobs=1),
        lambda: ckptcheck.scan(target, jobs=1, stats=target.parent / "stats.jsonl", pictures=True),
        lambda: ckptcheck.verify(target, ckptcheck.manifest(model, target.parent / "m.json", jobs=1), jobs=1),
        lambda: ckptcheck.series(_list_saves(model, target), jobs=1),
    ]
    if (target / "adapter_config.json").is_file():
        base = CHECKPOINTS / "tiny-llama"
        calls = [
            lambda: ckptcheck.diff(target, base, base=base, jobs=1),
            lambda: ckptcheck.scan(target, base=base, jobs=1),
            *calls,
        ]
    with suppress(CkptcheckError):
        result = dice.choice(calls)()
        for report in getattr(result, "reports", [result] if isinstance(result, Report) else []):
            assert not [why for _, why in report.crashed if ".py, line" in why], report.crashed
