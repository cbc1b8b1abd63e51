"""The servers of the rules on attached ones, as a case describes them.

A table of ``servers`` (or ``reference``): ``about`` overrides what it says of itself; ``differs``, ``lacks``, ``blank`` are tensors
with another checksum, none, or that of nothing; ``off`` is added to every logprob, ``scores = false`` takes them away;
``refused``, ``dead`` as in `Seen`. ``written``: what an update came to: ``left`` and ``other`` are tensors that stayed
overwritten or came out otherwise; ``ok``, ``message``, ``told``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ckptcheck.engines.base import Scores
from ckptcheck.refit.attached import Attached, Seen, Written
from ckptcheck.servers.base import NOTHING, About, Answered
from ckptcheck.trainers.base import TrainerInfo

NAMES = (
    "model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.down_proj.weight",
    "model.norm.weight",
)  # fmt: skip
SOUND = {f"tp0/{name}": f"{number:016x}" for number, name in enumerate(NAMES, start=1)}
SEQUENCES = ((3, 4, 5), (6, 7, 8, 9))
LOGPROBS = ((-1.5, -2.25), (-0.5, -3.0, -7.5))
ABOUT = About("sglang", "0.5.23", "/models/tiny", "5", "float32", 1, "cpu", "LlamaForCausalLM")


def attached(table: dict[str, Any]) -> Attached:
    """Put together the evidence of a case."""
    servers = tuple(_seen(f"http://127.0.0.1:3000{index}", each) for index, each in enumerate(table["servers"]))
    reference = _seen("http://127.0.0.1:40000", table["reference"]) if "reference" in table else None
    trainer = table.get("trainer")
    told = trainer is not None and "untold" not in trainer
    off = trainer.get("off", 0.0) if trainer is not None else 0.0
    return Attached(
        "tiny",
        servers,
        SEQUENCES,
        reference,
        table.get("unfit", ""),
        TrainerInfo("transformers", "5.23.0", "float32", "", "LlamaForCausalLM") if told else None,
        tuple(tuple(value + off for value in each) for each in LOGPROBS) if told else (),
        trainer.get("untold", "") if trainer is not None else "",
    )


def _seen(url: str, table: dict[str, Any]) -> Seen:
    checksums = dict(SOUND) if table.get("checksums", True) else {}
    for name in table.get("differs", []):
        checksums[f"tp0/{name}"] = "f" * 16
    for name in table.get("blank", []):
        checksums[f"tp0/{name}"] = NOTHING[1]
    for name in table.get("lacks", []):
        del checksums[f"tp0/{name}"]
    off = table.get("off", 0.0)
    scores = (
        tuple(Scores(tuple(value + off for value in each)) for each in LOGPROBS) if table.get("scores", True) else ()
    )
    about = replace(ABOUT, **table.get("about", {}))
    seen = Seen(url, about, checksums, scores, table.get("refused", {}), table.get("dead", ""))
    return replace(seen, written=_written(table["written"])) if "written" in table else seen


def _written(table: dict[str, Any]) -> Written:
    scrambled = {name: f"dead{value[4:]}" for name, value in SOUND.items()}
    after = dict(SOUND)
    for name in table.get("left", []):
        after[f"tp0/{name}"] = scrambled[f"tp0/{name}"]
    for name in table.get("other", []):
        after[f"tp0/{name}"] = "e" * 16
    answer = Answered(table.get("ok", True), table.get("message", ""))
    return Written(answer, SOUND, scrambled, after, "ckptcheck", table.get("told", "ckptcheck"))
