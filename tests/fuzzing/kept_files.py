"""Doors of what ckptcheck or a trainer kept for later: signatures, statements of origin, parts, saves, and the cache of saves.

Signatures are signed anew after their statement was changed, since what is read behind a signature that fits is what would do
harm: whoever signs may lie. Parts and caches fit their files, as those of whoever writes to a folder that machines share.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import ckptcheck
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.compare.signatures.keys import SigningKey, TrustedSigner
from ckptcheck.compare.signatures.sign import sign_folder
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters import text
from ckptcheck.reporters.evidence_pictures import draw_pictures
from ckptcheck.runs.saves.open_series import open_series
from ckptcheck.verbs.signed_weights import open_signature_check
from tests.factories import saved_runs
from tests.factories.signatures import write_key
from tests.factories.torch_archives import write_archive
from tests.fuzz import CHECKPOINTS, RULES, damaged
from tests.fuzzing.batches import copy_flat
from tests.fuzzing.commands import build_inputs
from tests.fuzzing.documents import change_json, rules_of
from tests.fuzzing.megatron import change_archive
from tests.fuzzing.pickles import random_pickle
from tests.paths import ROOT

PATHS = [
    "..", "../outside.json", "/etc/passwd", ".", "", "a/../../outside.json", "config.json/", "config.json:0:1", "config.json:5:1",
    ".git", "\0", "::error::x", "x" * 3000, "model.safetensors:0:99999999999999999999", "é\u202e", "~root", "config.json:-1:2",
]  # fmt: skip
OUTSIDE = "outside.json"
"""A file beside the model that no report may name unless the statement does."""
RANK_FILES = [
    *(ROOT / "fixtures/fsdp" / name for name in ("three", "two-by-two")),
    *(ROOT / "fixtures/zero" / name for name in ("stage1", "stage2", "stage3")),
]
SMALL_SHAPES = {"model.norm.weight": (8,), "lm_head.weight": (12, 4), "model.layers.0.mlp.up_proj.weight": (6, 4)}
STEPS = (10, 20, 30)
CRASH = re.compile(r"\(\S+\.py, line \d+\)$")
"""How a report says that a rule crashed, and not that it could not read something."""


@dataclass(frozen=True)
class SignedModel:
    """A small model with its signature."""

    files: dict[str, bytes]
    bundle: dict[str, Any]
    statement: bytes
    key: Any
    public: Path


@cache
def build_signed_model(place: Path) -> SignedModel:
    """Sign a small model in a folder."""
    from base64 import b64decode

    from cryptography.hazmat.primitives import serialization
    from safetensors.numpy import save_file

    private, public = write_key(place / "keys")
    folder = place / "signed"
    folder.mkdir()
    with mock.patch.object(saved_runs, "SHAPES", SMALL_SHAPES):
        save_file(saved_runs.draw_weights(10), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(saved_runs.CONFIG))
    sign_folder(open_target(str(folder)), folder, SigningKey(private))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    bundle = json.loads(files.pop("model.sig"))
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    return SignedModel(files, bundle, b64decode(bundle["dsseEnvelope"]["payload"]), key, public)


def check_signature(seed: int, folder: Path) -> None:
    """Change the statement of a signature, sign it anew or not, change the bundle and the files, and verify it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    dice = random.Random(seed)
    model = build_signed_model(folder.parent)
    target = folder / "model"
    target.mkdir()
    (folder / OUTSIDE).write_text("{}")
    for name, raw in model.files.items():
        if dice.random() < 0.9:
            (target / name).write_bytes(damaged(raw, dice) if dice.random() < 0.1 else raw)
    if dice.random() < 0.1:
        (target / "link.json").symlink_to(folder / OUTSIDE)
    statement = _change_statement(model.statement, dice) if dice.random() < 0.8 else model.statement
    envelope = {**model.bundle["dsseEnvelope"], "payload": b64encode(statement).decode()}
    if dice.random() < 0.8:
        kind = envelope["payloadType"].encode()
        signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(statement), statement)
        signature = model.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        envelope["signatures"] = [{"sig": b64encode(signature).decode()}]
    raw = json.dumps({**model.bundle, "dsseEnvelope": envelope}).encode()
    (target / "model.sig").write_bytes(change_json(raw, dice) if dice.random() < 0.25 else raw)
    with suppress(CkptcheckError):
        check = open_signature_check(
            str(target), None, TrustedSigner(model.public), None, ScanOptions(), ignore_unsigned=False, jobs=1, runner=None,
            progress=None,
        )  # fmt: skip
        report = run_rules(check, rules_of("signature", "manifest"))
        _require_no_crash(report)
        text.write([report], RULES, stream := io.StringIO(), verbose=True)
        assert OUTSIDE in statement.decode("utf-8", "replace") or OUTSIDE not in stream.getvalue()


def _change_statement(raw: bytes, dice: random.Random) -> bytes:
    with suppress(ValueError, RecursionError, LookupError, TypeError):
        form = json.loads(raw)
        predicate = form["predicate"]
        for _ in range(dice.choice([0, 1, 2])):
            resource = dice.choice(predicate["resources"])
            resource["name"] = dice.choice([*PATHS, *(one["name"] for one in predicate["resources"])])
        if dice.random() < 0.3:
            predicate["serialization"]["ignore_paths"] = dice.sample(PATHS, dice.choice([1, 3]))
        if dice.random() < 0.2:
            size = dice.choice([1, 7, 512, 1 << 61, 0, -1])
            predicate["serialization"] |= {"method": "shards", "shard_size": size, "hash_type": "sha256"}
            for resource in predicate["resources"]:
                resource["name"] += f":0:{size}"
        if dice.random() < 0.05:
            predicate["resources"] *= dice.choice([2, 30, 30, 30, 3000])
        raw = json.dumps(form).encode()
    return change_form(raw, dice) if dice.random() < 0.5 else raw


VALUES: list[Any] = [
    None, True, -1, 0, 1, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1e308, float("nan"), float("inf"), "", "x" * 5000,
    "..", "\0", "::error::x", b"", b"\xff" * 9, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", [], {}, [[]], [0] * 5000,
    {"a": {}}, "0/0", "*",
]  # fmt: skip


def change_packed(value: Any, dice: random.Random) -> Any:
    """Change some values of what MessagePack holds, at times within bytes that are MessagePack themselves."""
    for _ in range(dice.choice([1, 1, 2, 4])):
        value = _change_one(value, dice)
    return value


def _change_one(value: Any, dice: random.Random) -> Any:
    if isinstance(value, bytes):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.msgpack.encode(_change_one(msgspec.msgpack.decode(value), dice))
        return damaged(value, dice)
    if not isinstance(value, (dict, list)) or not value or dice.random() < 0.01:
        alike = [other for other in VALUES if type(other) is type(value)]
        near = [value - 1, value + 1, -value, value * 2] if type(value) is int and abs(value) < 1 << 60 else []
        return dice.choice([*near, *alike] if alike and dice.random() < 0.8 else VALUES)
    copy = dict(value) if isinstance(value, dict) else list(value)
    place = dice.choice(sorted(copy, key=repr)) if isinstance(copy, dict) else dice.randrange(len(copy))
    match dice.randrange(8):
        case 0 if isinstance(copy, list) or dice.random() < 0.5:
            del copy[place]
        case 1 if isinstance(copy, list):
            copy[place:place] = [copy[place]] * dice.choice([1, 2, 300])
        case 1 | 2 if isinstance(copy, dict):
            copy[dice.choice([*PATHS, "rules", "config", "values", "jobs", "runner"])] = dice.choice(
                [copy[place], *VALUES]
            )
        case _:
            copy[place] = _change_one(copy[place], dice)
    return copy


@cache
def _parts() -> tuple[dict[str, bytes], ...]:
    import tempfile

    target = CHECKPOINTS / "tiny-llama"
    made = []
    with tempfile.TemporaryDirectory() as place:
        manifest = Path(place) / "m.json"
        ckptcheck.manifest(target, manifest)
        calls: list[tuple[Any, ...]] = [("scan", target), ("manifest", target), ("diff", target, target)]
        for verb, *targets in calls:
            folder = Path(place) / verb
            options: dict[str, Any] = {"values": True, "select": ["VAL", "ST"]} if verb == "scan" else {}
            for index in range(2):
                ckptcheck.write_part(verb, *targets, part=f"{index}/2", folder=folder, **options)
            made.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    return tuple(made)


def change_form(raw: bytes, dice: random.Random) -> bytes:
    """Change a JSON document, mostly by values of the kind that stands there: what follows its form is read further."""
    if dice.random() < 0.3:
        return change_json(raw, dice)
    return json.dumps(change_packed(json.loads(raw), dice), default=repr).encode()


def check_parts(seed: int, folder: Path) -> None:
    """Change the parts of a scan, a manifest or a comparison, and join them."""
    dice = random.Random(seed)
    place = folder / "parts"
    place.mkdir()
    os.chdir(folder)
    parts = dict(dice.choice(_parts()))
    for name in dice.sample(sorted(parts), dice.choice([1, 1, 2])):
        raw = parts[name]
        if dice.random() < 0.85:
            form = msgspec.msgpack.decode(raw)
            if (
                form["passes"] and dice.random() < 0.6
            ):  # what a machine computed: its header and its plan stay those of the others
                share = dice.choice(list(form["passes"].values()))
                share["results"] = change_packed(share["results"], dice)
            else:
                form = change_packed(form, dice)
            raw = msgspec.msgpack.encode(form)
        parts[name] = damaged(raw, dice) if dice.random() < 0.15 else raw
    if dice.random() < 0.05:
        parts[dice.choice(["part-0.ckptcheck-part", "part-00000-of-99999.ckptcheck-part"])] = dice.choice(
            [*parts.values()]
        )
    for name, raw in parts.items():
        (place / name).write_bytes(raw)
    with suppress(CkptcheckError):
        joined = ckptcheck.join(place, jobs=1)
        for report in getattr(joined, "reports", ()):
            _require_no_crash(report)


def _require_no_crash(report: Report) -> None:
    """Raise AssertionError where a rule crashed; one that could not read something says so in a sentence."""
    crashed = [(code, why) for code, why in report.crashed if CRASH.search(why)]
    assert not crashed, crashed


@cache
def build_run(place: Path) -> tuple[Path, bytes]:
    """Write a run of some saves, and what a call keeps of them; return its folder and the content of the cache."""
    run, kept = place / "run", place / "kept.json"
    with mock.patch.object(saved_runs, "SHAPES", SMALL_SHAPES):
        for step in STEPS:
            folder = saved_runs.write_trainer_save(run, step)
            log = [{"step": number, "learning_rate": 1e-4} for number in range(0, step, 5)]
            (folder / "trainer_state.json").write_text(
                json.dumps({"global_step": step, "epoch": 1.0, "log_history": log})
            )
            for file in folder.iterdir():
                os.utime(file, (1.7e9 + step, 1.7e9 + step))
    open_series([str(run)], cache=kept, jobs=1)
    form = json.loads(kept.read_bytes())
    for one in form["saves"].values():
        for record in [*one["save"]["weights"].values(), *one["save"].get("states", {}).values()]:
            if record.get("sample"):
                record["sample"] = record["sample"][:64]
    return run, json.dumps(form).encode()


def check_kept_saves(seed: int, folder: Path) -> None:
    """Change what an earlier call kept of the saves of a run, and look at the run with it."""
    dice = random.Random(seed)
    run, raw = build_run(folder.parent)
    kept = folder / "kept.json"
    kept.write_bytes(change_form(raw, dice))
    with suppress(CkptcheckError):
        _judge_series([str(run)], kept)


def check_saves(seed: int, folder: Path) -> None:
    """Change what a trainer saved beside the weights: its state, its optimizer, its scheduler, the folders' names."""
    dice = random.Random(seed)
    run, _ = build_run(folder.parent)
    copy = folder / "run"
    for save in sorted(run.iterdir())[:2]:
        name = (
            save.name
            if dice.random() < 0.9
            else dice.choice(["checkpoint-0", "global_step_999999999999999", "step=1", "iter_-5"])
        )
        (copy / name).mkdir(parents=True, exist_ok=True)
        changed = dice.choice(
            ["trainer_state.json", "scheduler.pt", "optimizer.pt", "model.safetensors", "config.json"]
        )
        for file in save.iterdir():
            raw = file.read_bytes()
            if file.name == changed:
                raw = _change_state(file.name, raw, dice)
            (copy / name / file.name).write_bytes(raw)
    if dice.random() < 0.1:
        (copy / "latest").write_bytes(dice.choice([b"checkpoint-10", b"\xff", b"../..", b"x" * 99_999, b""]))
    with suppress(CkptcheckError):
        _judge_series([str(copy)], None)


def _change_state(name: str, raw: bytes, dice: random.Random) -> bytes:
    if name.endswith(".json"):
        return change_form(raw, dice)
    if name.endswith(".safetensors"):
        return damaged(raw, dice)
    match dice.randrange(4):
        case 0:
            return write_archive({"data.pkl": random_pickle(dice), "data/0": bytes(64), "byteorder": b"little"})
        case 1 | 2:
            return change_archive(raw, dice)
    return damaged(raw, dice)


def check_rank_files(seed: int, folder: Path) -> None:
    """Change files of FSDP's or DeepSpeed's ranks, and look at the run and at what the ranks hold together."""
    dice = random.Random(seed)
    source = dice.choice(RANK_FILES)
    save = copy_flat(source, folder / ("global_step_2" if source.parent.name == "fsdp" else "run"))
    files = sorted(save.rglob("*.pt"))
    for path in dice.sample(files, dice.choice([1, 1, 2])):
        path.write_bytes(_change_state(path.name, path.read_bytes(), dice))
    with suppress(CkptcheckError):
        _judge_series([str(save)], None)
    with suppress(CkptcheckError):
        ckptcheck.identity(next(save.glob("global_step*"), save), jobs=1)


def _judge_series(targets: list[str], cache: Path | None) -> None:
    series = open_series(targets, cache=cache, jobs=1)
    report = run_rules(series, rules_of("saves"))
    _require_no_crash(report)
    text.write([report], RULES, io.StringIO(), verbose=True)
    assert not [each for each in draw_pictures(series) if "could not be drawn" in each.caption]


PREPARATIONS: dict[str, Callable[[Path], object]] = {
    "signature": build_signed_model,
    "parts": lambda _: _parts(),
    "saves": build_run,
    "kept-saves": build_run,
    **dict.fromkeys(("places", "limits", "folder"), build_inputs),
}
"""Door → what its inputs are made from."""
