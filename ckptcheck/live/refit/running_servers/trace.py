"""What servers that somebody else started answer: the evidence of the rules on ``servers``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.runtime.engines.base import SequenceScores
from ckptcheck.live.runtime.engines.known_issues import EngineIdentity, traits_of_server
from ckptcheck.live.runtime.servers.base import EMPTY_CHECKSUMS, ServerInfo, ServerUpdateResult
from ckptcheck.live.runtime.servers.layout import is_draft, place_in_copy
from ckptcheck.live.runtime.trainers.base import TrainerInfo


@dataclass(frozen=True)
class UpdateTrial:
    """The result of overwriting a server's weights and having it load the checkpoint from its disk."""

    result: ServerUpdateResult
    """Also not ok if it is unknown what the server holds now."""
    before: Mapping[str, str]
    """Checksums before the server's weights were overwritten."""
    scrambled: Mapping[str, str]
    """Checksums while they were overwritten."""
    after: Mapping[str, str]
    """Checksums after the server loaded the checkpoint."""
    requested_version: str = ""
    """The weight version that the update set."""
    reported_version: str = ""
    """The weight version that the server reports afterwards."""


@dataclass(frozen=True)
class ServerState:
    """What one server answered."""

    url: str
    info: ServerInfo
    checksums: Mapping[str, str] = field(default_factory=dict)
    """``rank/name`` → hexadecimal checksum, as the server computes it."""
    scores: tuple[SequenceScores, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    """``checksums``, ``logprobs`` or ``update`` → why the server did not give them."""
    dead_reason: str = ""
    """Why the server generates no tokens; "" if it does."""
    update_trial: UpdateTrial | None = None
    identity: str = ""
    """Identity of the weights that it holds, "" where it was not asked or cannot tell."""
    identity_gap: str = ""
    """Why it cannot, or why another identity tells nothing."""

    @cached_property
    def readable_checksums(self) -> dict[str, str]:
        """The checksums of weights that have bytes. A packed weight leaves the checksum of no bytes behind."""
        return {place: value for place, value in self.checksums.items() if value not in EMPTY_CHECKSUMS}

    @cached_property
    def weights(self) -> dict[str, frozenset[str]]:
        """``rank/name`` within one copy of the model → checksums of all copies there; more than one if the copies disagree."""
        return self.merge_copies(self.checksums)

    @cached_property
    def draft_checksums(self) -> dict[str, str]:
        """The readable checksums of a draft model."""
        return {place: value for place, value in self.readable_checksums.items() if is_draft(place)}

    def merge_copies(self, checksums: Mapping[str, str]) -> dict[str, frozenset[str]]:
        """Merge the checksums of all copies of the model, without draft models and unreadable weights."""
        merged: dict[str, set[str]] = {}
        for place, value in checksums.items():
            if value not in EMPTY_CHECKSUMS and not is_draft(place):
                merged.setdefault(place_in_copy(place) if self.info.layout.copies > 1 else place, set()).add(value)
        return {place: frozenset(values) for place, values in merged.items()}

    @cached_property
    def missing_ranks(self) -> str:
        """How many ranks gave checksums; "" if all did, or if the server does not say how many ranks it has."""
        ranks = self.info.layout.ranks * self.info.layout.copies
        answering_ranks = len({place.partition("/")[0] for place in self.checksums if not is_draft(place)})
        return (
            f"{self.url} gives checksums of {answering_ranks} of its {ranks} ranks"
            if 0 < answering_ranks < ranks
            else ""
        )


@dataclass(frozen=True)
class ServerEvidence(EvidenceDefaults):
    """Servers, and what they are compared with."""

    target: str
    servers: tuple[ServerState, ...]
    sequences: tuple[tuple[int, ...], ...] = ()
    """Token ids that all of them scored."""
    reference: ServerState | None = None
    """The same engine, started here from the checkpoint."""
    reference_skipped: str = ""
    """Why there is no reference, or why its checksums do not compare."""
    trainer: TrainerInfo | None = None
    trainer_scores: tuple[tuple[float, ...], ...] = ()
    """The trainer's logprobs of the sequences."""
    trainer_skipped: str = ""
    """Why there are none."""
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """What could not be compared → why."""
    traits: frozenset[str] = frozenset()
    """Traits of the weights that the servers should serve, see engines/known_issues.toml."""
    architecture: str = ""
    """Architecture that the servers should serve; "" if unknown."""
    source_identity: str = ""
    """Identity of the checkpoint, "" where no server was asked for its own."""
    kind: str = "servers"
    failed_to: str = "compare"

    @property
    def subject(self) -> str:
        """One line that names the servers and what they are compared with."""
        sides = [f"{server.info.name or server.info.engine} at {server.url}" for server in self.servers]
        against = [f"{self.reference.info.name} started here"] if self.reference is not None else []
        if self.trainer is not None:
            against.append(f"{self.trainer.name} {self.trainer.version} {self.trainer.dtype}")
        return " and ".join(sides) + (f" · compared with {' and '.join(against)}" if against else "")

    @property
    def unread(self) -> Mapping[str, str]:
        """What could not be compared; no rule can then pass."""
        return self.not_compared

    @property
    def identities(self) -> Mapping[str, str]:
        """The identities of the checkpoint and of the servers that hold it; another identity may be another form of storage."""
        if not self.source_identity:
            return {}
        holders = {state.url: state.identity for state in self.servers if state.identity == self.source_identity}
        return {"checkpoint": self.source_identity, **holders}

    @property
    def sections(self) -> tuple[Section, ...]:
        """Which servers hold the checkpoint, by the identity of their weights."""
        rows = tuple(
            (state.url, "yes" if state.identity == self.source_identity else "not known", state.identity_gap)
            for state in self.servers
            if state.identity or state.identity_gap
        )
        title = "whether a server holds the weights of the checkpoint, by their identity"
        return (Section(title, ("server", "holds them", "why it is not known"), rows),) if rows else ()

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of tensors with a checksum. Servers do not report bytes."""
        return {"files": 0, "tensors": sum(len(server.checksums) for server in self.servers), "bytes": 0}

    def view_for(self, kind: str) -> object | None:
        """Return the engines for rules on ``engines``, this evidence for its own rules, None for others."""
        if kind == self.kind:
            return self
        if kind != "engines":
            return None
        return tuple(self._identify(server) for server in self.servers if server.info.version)

    def _identify(self, server: ServerState) -> EngineIdentity:
        info = server.info
        # vLLM 0.32 does not report its architecture
        architecture = info.architecture or self.architecture
        reported = [info.device, "draft" if info.layout.has_draft else ""]
        names = [place.partition("/")[2] for place in server.checksums if not is_draft(place)]
        traits = self.traits | traits_of_server(reported, architecture, info.layout.quantization, names)
        return EngineIdentity(info.engine, info.version, architecture, traits, server.url)
