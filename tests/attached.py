"""The servers of the rules on attached ones, as a case describes them.

A table of ``servers`` (or ``reference``): ``about`` overrides what it says of itself, ``layout`` how it spreads the model;
``differs``, ``lacks``, ``blank`` are tensors with another checksum, none, or that of nothing; ``copy`` tells of a second copy of
the model and names the tensors in which it differs; ``draft`` names tensors of a draft model, all with one checksum, ``drafted``;
``stage`` those of a second stage; ``off`` is added to every logprob, ``scores = false`` takes them away; ``refused``, ``dead`` as
in `Seen`. ``written``: what an update came to: ``left`` and ``other`` are tensors that stayed overwritten or came out otherwise,
``draft`` those of a draft model that stayed so; ``ok``, ``message``, ``told``. Beside the servers: ``trainer``, ``unfit``,
``traits``, ``architecture``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ckptcheck.engines.base import Scores
from ckptcheck.refit.attached import Attached, Seen, Written
from ckptcheck.servers.base import NOTHING, About, Answered
from ckptcheck.servers.layout import Layout
from ckptcheck.trainers.base import TrainerInfo

NAMES = (
    "model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.down_proj.weight",
    "model.norm.weight",
)  # fmt: skip
SOUND = {f"tp0/{name}": f"{number:016x}" for number, name in enumerate(NAMES, start=1)}
SEQUENCES = ((3, 4, 5), (6, 7, 8, 9))
LOGPROBS = ((-1.5, -2.25), (-0.5, -3.0, -7.5))
ABOUT = About("sglang", "0.5.23", "/models/tiny", "5", "float32", "cpu", "LlamaForCausalLM")


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
        traits=frozenset(table.get("traits", ())),
        architecture=table.get("architecture", ""),
    )


def _seen(url: str, table: dict[str, Any]) -> Seen:
    checksums = dict(SOUND) if table.get("checksums", True) else {}
    for name in table.get("differs", []):
        checksums[f"tp0/{name}"] = "f" * 16
    for name in table.get("blank", []):
        checksums[f"tp0/{name}"] = NOTHING[1]
    for name in table.get("lacks", []):
        del checksums[f"tp0/{name}"]
    if "copy" in table:
        behind = {f"tp0/{name}": "c" * 16 for name in table["copy"]}
        checksums |= {place.replace("tp0", "tp0.dp1"): value for place, value in (checksums | behind).items()}
    checksums |= {f"tp0.draft/{name}": table.get("drafted", "d" * 16) for name in table.get("draft", [])}
    checksums |= {f"tp0.pp1/{name}": "5" * 16 for name in table.get("stage", [])}
    off = table.get("off", 0.0)
    scores = (
        tuple(Scores(tuple(value + off for value in each)) for each in LOGPROBS) if table.get("scores", True) else ()
    )
    layout = table.get("layout", {})
    further = tuple(layout.get("further", ()))
    about = replace(ABOUT, **table.get("about", {}), layout=Layout(**{"tp": 1} | layout | {"further": further}))
    seen = Seen(url, about, checksums, scores, table.get("refused", {}), table.get("dead", ""))
    return replace(seen, written=_written(table["written"])) if "written" in table else seen


def _written(table: dict[str, Any]) -> Written:
    scrambled = {name: f"dead{value[4:]}" for name, value in SOUND.items()}
    after = dict(SOUND)
    for name in table.get("left", []):
        after[f"tp0/{name}"] = scrambled[f"tp0/{name}"]
    for name in table.get("other", []):
        after[f"tp0/{name}"] = "e" * 16
    before = dict(SOUND) | {f"tp0.draft/{name}": "d" * 16 for name in table.get("draft", [])}
    for name in table.get("draft", []):
        after[f"tp0.draft/{name}"] = scrambled[f"tp0.draft/{name}"] = "dead" * 4
    answer = Answered(table.get("ok", True), table.get("message", ""))
    return Written(answer, before, scrambled, after, "ckptcheck", table.get("told", "ckptcheck"))
