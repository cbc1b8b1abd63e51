"""The servers of the rules on attached ones, as a case describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ckptcheck.live.refit.running_servers.comparability import find_uncompared
from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState, UpdateTrial
from ckptcheck.live.runtime.engines.base import SequenceScores
from ckptcheck.live.runtime.servers.base import EMPTY_CHECKSUMS, ServerInfo, ServerUpdateResult
from ckptcheck.live.runtime.servers.layout import ServerLayout
from ckptcheck.live.runtime.trainers.base import TrainerInfo
from tests.factories.case_table import CaseTable, StrictTable

NAMES = (
    "model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.down_proj.weight",
    "model.norm.weight",
)  # fmt: skip
SOUND = {f"tp0/{name}": f"{number:016x}" for number, name in enumerate(NAMES, start=1)}
SEQUENCES = ((3, 4, 5), (6, 7, 8, 9))
LOGPROBS = ((-1.5, -2.25), (-0.5, -3.0, -7.5))
INFO = ServerInfo("sglang", "0.5.23", "/models/tiny", "5", "float32", "cpu", "LlamaForCausalLM")


def build_evidence(
    source: str, server: ServerState, sequences: tuple[tuple[int, ...], ...], **compared: Any
) -> ServerEvidence:
    """Return the evidence of one server, with what it is compared with."""
    evidence = ServerEvidence(source, (server,), sequences, **compared)
    return replace(evidence, not_compared=find_uncompared(evidence, source))


class UpdateTable(StrictTable, kw_only=True):
    """What an update of the weights came to."""

    left: list[str] = []
    """Tensors that stayed overwritten."""
    other: list[str] = []
    """Tensors that came out as something else."""
    draft: list[str] = []
    """Tensors of a draft model that stayed overwritten."""
    ok: bool = True
    """Whether the server says that it succeeded."""
    message: str = ""
    """What it says."""
    told: str = "ckptcheck"
    """The version of the weights that it reports afterwards."""


class ServerTable(StrictTable, kw_only=True):
    """What one server answers."""

    info: dict[str, Any] = {}
    """What it says of itself, as far as it differs from `INFO`."""
    layout: dict[str, Any] = {}
    """How it spreads the model, see `ServerLayout`; tp is 1."""
    checksums: bool = True
    """Whether it tells the checksums of the weights."""
    differs: list[str] = []
    """Tensors with another checksum."""
    blank: list[str] = []
    """Tensors with the checksum of no bytes."""
    lacks: list[str] = []
    """Tensors without a checksum."""
    copy: list[str] | None = None
    """There is a second copy of the model, which differs in these tensors."""
    draft: list[str] = []
    """Tensors of a draft model."""
    drafted: str = "d" * 16
    """The checksum that all of these have."""
    stage: list[str] = []
    """Tensors of a second stage of the pipeline."""
    scores: bool = True
    """Whether it tells logprobs."""
    off: float = 0.0
    """What is added to every logprob."""
    refused: dict[str, str] = {}
    """``checksums``, ``logprobs`` or ``update`` → why the server did not give them."""
    dead: str = ""
    """Why it generates no tokens."""
    written: UpdateTable | None = None
    """The update, where one was tried."""


class ServersTrainer(StrictTable, kw_only=True):
    """The trainer that the servers are compared with."""

    off: float = 0.0
    """What is added to every logprob."""
    untold: str = ""
    """Why it gave no logprobs."""


class ServersCase(CaseTable, kw_only=True):
    """A case of a rule on running servers, or on their engines."""

    servers: list[ServerTable]
    reference: ServerTable | None = None
    """The server that loaded the checkpoint cold."""
    unfit: str = ""
    """Why there is no reference."""
    trainer: ServersTrainer | None = None
    traits: list[str] = []
    """Traits of the model, see `ServerEvidence`."""
    architecture: str = ""
    """The architecture that the checkpoint's config names."""


def build_servers(table: Mapping[str, Any]) -> ServerEvidence:
    """Put together the evidence of a case."""
    case = msgspec.convert(table, ServersCase)
    servers = tuple(_server_state(f"http://127.0.0.1:3000{index}", each) for index, each in enumerate(case.servers))
    reference = None if case.reference is None else _server_state("http://127.0.0.1:40000", case.reference)
    trainer = case.trainer
    told = trainer is not None and not trainer.untold
    off = trainer.off if trainer is not None else 0.0
    return ServerEvidence(
        "tiny",
        servers,
        SEQUENCES,
        reference,
        case.unfit,
        TrainerInfo("transformers", "5.23.0", "float32", "", "LlamaForCausalLM") if told else None,
        tuple(tuple(value + off for value in each) for each in LOGPROBS) if told else (),
        trainer.untold if trainer is not None else "",
        traits=frozenset(case.traits),
        architecture=case.architecture,
    )


def _server_state(url: str, table: ServerTable) -> ServerState:
    checksums = dict(SOUND) if table.checksums else {}
    for name in table.differs:
        checksums[f"tp0/{name}"] = "f" * 16
    for name in table.blank:
        checksums[f"tp0/{name}"] = EMPTY_CHECKSUMS[1]
    for name in table.lacks:
        del checksums[f"tp0/{name}"]
    if table.copy is not None:
        behind = {f"tp0/{name}": "c" * 16 for name in table.copy}
        checksums |= {place.replace("tp0", "tp0.dp1"): value for place, value in (checksums | behind).items()}
    checksums |= {f"tp0.draft/{name}": table.drafted for name in table.draft}
    checksums |= {f"tp0.pp1/{name}": "5" * 16 for name in table.stage}
    off = table.off
    scores = tuple(SequenceScores(tuple(value + off for value in each)) for each in LOGPROBS) if table.scores else ()
    layout = table.layout
    other_settings = tuple(layout.get("other_settings", ()))
    info = replace(INFO, **table.info, layout=ServerLayout(**{"tp": 1} | layout | {"other_settings": other_settings}))
    seen = ServerState(url, info, checksums, scores, table.refused, table.dead)
    return seen if table.written is None else replace(seen, update_trial=_build_update_result(table.written))


def _build_update_result(table: UpdateTable) -> UpdateTrial:
    scrambled = {name: f"dead{value[4:]}" for name, value in SOUND.items()}
    after = dict(SOUND)
    for name in table.left:
        after[f"tp0/{name}"] = scrambled[f"tp0/{name}"]
    for name in table.other:
        after[f"tp0/{name}"] = "e" * 16
    before = dict(SOUND) | {f"tp0.draft/{name}": "d" * 16 for name in table.draft}
    for name in table.draft:
        after[f"tp0.draft/{name}"] = scrambled[f"tp0.draft/{name}"] = "dead" * 4
    answer = ServerUpdateResult(table.ok, table.message)
    return UpdateTrial(answer, before, scrambled, after, "ckptcheck", table.told)
