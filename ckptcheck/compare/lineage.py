"""What weights were made from: a statement in their manifest, and the chain that the manifests of all steps form.

A statement is one of in-toto (https://github.com/in-toto/attestation/tree/main/spec/v1) with the predicate SLSA provenance
(https://slsa.dev/spec/v1.0/provenance): the weights are its subject, their inputs are the resolved dependencies, and the tool is
the builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec

from ckptcheck.compare.identity import TensorIdentity, compute_root, hash_leaf
from ckptcheck.compare.manifest import Manifest
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.text.formatting import count, natural_sort_key

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "https://ckptcheck.github.io/ckptcheck/identity/#what-weights-were-made-from"
IDENTITY, TENSORS = "ckptcheckIdentityV1", "ckptcheckTensorsV1"
"""Names of digests: the identity of a set of weights; for a set without one, the same root over its stored tensors."""
MOST_INPUTS = 256
"""Inputs of one set of weights that are followed: a merge has about ten."""
MARK = 12
"""Hexadecimal digits that stand for a tensor of an input, so that a tensor that changed can be named."""


class _Resource(msgspec.Struct):
    digest: dict[str, str] = {}
    name: str = ""
    annotations: dict[str, Any] = {}


class _Build(msgspec.Struct, rename="camel"):
    resolved_dependencies: list[_Resource] = []
    external_parameters: dict[str, Any] = {}


class _Builder(msgspec.Struct):
    id: str = ""
    version: dict[str, str] = {}


class _Run(msgspec.Struct):
    builder: _Builder = msgspec.field(default_factory=_Builder)


class _Predicate(msgspec.Struct, rename="camel"):
    build_definition: _Build
    run_details: _Run = msgspec.field(default_factory=_Run)


class _Statement(msgspec.Struct, rename="camel"):
    subject: list[_Resource]
    predicate_type: str
    predicate: _Predicate
    type: str = msgspec.field(name="_type")


@dataclass(frozen=True)
class Input:
    """What weights were made from, as their manifest states it."""

    name: str
    digest: Mapping[str, str]
    names: str = ""
    """The naming convention of its tensors: ``Hugging Face`` or ``Megatron``."""
    marks: frozenset[str] = field(default_factory=frozenset, repr=False)
    """A mark of each of its tensors; empty where the statement has none."""


@dataclass(frozen=True)
class Origin:
    """The origin that a manifest states for its weights."""

    inputs: tuple[Input, ...]
    tool: str
    """Name and version; "" if the manifest does not state them."""
    command: str
    subject: Mapping[str, str]
    """The digests of the weights that the statement describes."""


class MalformedOrigin(Exception):
    """A manifest states an origin that cannot be read; the message is one sentence."""


def digest_manifest(manifest: Manifest) -> dict[str, str]:
    """Return the digest of the weights of a manifest, by the name of the digest."""
    if manifest.identity is not None:
        return {IDENTITY: manifest.identity}
    return {TENSORS: compute_root(_list_tensors(manifest))}


def state_origin(
    manifest: Manifest, inputs: Mapping[str, Manifest], *, tool: str = "", version: str = "", command: str = ""
) -> dict[str, Any]:
    """Return the statement that weights were made from inputs. inputs: name → manifest."""
    label = tool or "unknown"
    build: dict[str, Any] = {
        "buildType": BUILD,
        "externalParameters": {"command": command} if command else {},
        "resolvedDependencies": [_state_input(name, each) for name, each in inputs.items()],
    }
    builder: dict[str, Any] = {"id": f"pkg:generic/{quote(label, safe='')}{f'@{quote(version)}' if version else ''}"}
    if version:
        builder["version"] = {label: version}
    return {
        "_type": STATEMENT,
        "subject": [{"name": manifest.target, "digest": digest_manifest(manifest)}],
        "predicateType": PREDICATE,
        "predicate": {"buildDefinition": build, "runDetails": {"builder": builder}},
    }


def read_origin(manifest: Manifest) -> Origin | None:
    """Return the origin that a manifest states; None if it states none. Raises MalformedOrigin."""
    if manifest.made_from is None:
        return None
    try:
        statement = msgspec.convert(manifest.made_from, _Statement)
    except msgspec.ValidationError as error:
        raise MalformedOrigin(f"its origin cannot be read: {error}") from error
    if (statement.type, statement.predicate_type) != (STATEMENT, PREDICATE) or len(statement.subject) != 1:
        raise MalformedOrigin("its origin is no statement of in-toto about one set of weights")
    build = statement.predicate.build_definition
    if len(build.resolved_dependencies) > MOST_INPUTS:
        raise MalformedOrigin(f"its origin names more than {MOST_INPUTS} inputs")
    builder = statement.predicate.run_details.builder
    tool = builder.id.removeprefix("pkg:generic/").partition("@")[0].replace("unknown", "")
    version = next(iter(builder.version.values()), "")
    return Origin(
        tuple(_read_input(each) for each in build.resolved_dependencies),
        f"{tool} {version}".strip(),
        str(build.external_parameters.get("command", "")),
        statement.subject[0].digest,
    )


def _state_input(name: str, manifest: Manifest) -> dict[str, Any]:
    marks = "".join(_mark(name, each) for name, each in sorted(_list_tensors(manifest).items()))
    notes = {"names": manifest.names or "", "tensors": marks}
    return {"name": name, "digest": digest_manifest(manifest), "annotations": notes}


def _read_input(resource: _Resource) -> Input:
    marks = str(resource.annotations.get("tensors", ""))
    return Input(
        resource.name,
        resource.digest,
        str(resource.annotations.get("names", "")),
        frozenset(marks[at : at + MARK] for at in range(0, len(marks), MARK)),
    )


def _list_tensors(manifest: Manifest) -> Mapping[str, TensorIdentity]:
    """Return the tensors that enter the digest of a manifest."""
    if manifest.identity is not None:
        return manifest.weights
    return {name: TensorIdentity(each.dtype, each.shape, each.digest) for name, each in manifest.tensors.items()}


def _mark(name: str, tensor: TensorIdentity) -> str:
    return hash_leaf(name, tensor).hex()[:MARK]


@dataclass(frozen=True)
class Link:
    """One input of one step of a chain."""

    child: str
    """The manifest that states it."""
    input: Input
    found: str | None = None
    """The manifest that the user gave for it; None without one."""
    is_same: bool = False
    """Whether the weights of that manifest are the input's."""
    changed: tuple[str, ...] = ()
    """Tensors of that manifest whose values the input did not have; () if that is not known."""
    gone: int = 0
    """Tensors of the input whose values the manifest does not have."""
    other_names: bool = False
    """Whether the two cannot be compared, because one has Megatron's names."""


@dataclass(frozen=True)
class Lineage(EvidenceDefaults):
    """The evidence about a chain of manifests, from the verified weights back to the first one that the user gave."""

    target: str
    links: tuple[Link, ...]
    trouble: Mapping[str, str] = field(default_factory=dict)
    """Manifest → why its statement of origin is not about its weights."""
    unused: tuple[str, ...] = ()
    """Manifests that the user gave, and from which nothing in the chain was made."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Manifest → the tool and the command that made its weights."""
    kind: str = "lineage"

    @property
    def subject(self) -> str:
        """The chain, in words."""
        return f"a chain of {count(len(self.links), 'link')}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: the manifests were read before."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Manifests are no files of a checkpoint."""
        return {"files": 0, "tensors": 0, "bytes": 0}

    def list_sections(self) -> tuple[Section, ...]:
        """Return the chain as a table of the report."""
        rows = []
        for link in self.links:
            state = "holds" if link.is_same else "was not given" if link.found is None else "is broken"
            rows.append((link.child, link.input.name, self.tools.get(link.child, ""), state))
        return (Section("Lineage", ("weights", "made from", "by", "link"), tuple(rows)),) if rows else ()


@dataclass(frozen=True)
class _Given:
    """A manifest that the user gave. Its values are computed once, because many inputs may be compared with it."""

    manifest: Manifest

    @cached_property
    def digest(self) -> dict[str, str]:
        return digest_manifest(self.manifest)

    @cached_property
    def marks(self) -> dict[str, str]:
        """Mark → the tensor, in natural order of names."""
        tensors = _list_tensors(self.manifest)
        return {_mark(name, tensors[name]): name for name in sorted(tensors, key=natural_sort_key)}


def trace_lineage(name: str, manifest: Manifest, given: Mapping[str, Manifest]) -> Lineage:
    """Follow a manifest to its inputs, and those to theirs, through the manifests that were given. given: name → manifest."""
    links: list[Link] = []
    trouble: dict[str, str] = {}
    tools: dict[str, str] = {}
    others = {key: _Given(one) for key, one in given.items()}
    queue, seen, used = [(name, _Given(manifest))], {name}, set()
    while queue:
        child, current = queue.pop(0)
        try:
            origin = read_origin(current.manifest)
        except MalformedOrigin as error:
            trouble[child] = str(error)
            continue
        if origin is None:
            continue
        if not _agree(origin.subject, current):
            trouble[child] = "what it states about its origin was stated of other weights"
        tools[child] = " · ".join(part for part in (origin.tool, origin.command) if part)
        for each in origin.inputs:
            link = _find_link(child, each, {key: one for key, one in others.items() if key != child})
            links.append(link)
            if link.found is not None:
                used.add(link.found)
                if link.found not in seen:
                    seen.add(link.found)
                    queue.append((link.found, others[link.found]))
    return Lineage(manifest.target, tuple(links), trouble, tuple(sorted(given.keys() - used - {name})), tools)


def _agree(digest: Mapping[str, str], given: _Given) -> bool:
    """Whether a digest is that of a manifest's weights."""
    return any(digest.get(key) == value for key, value in given.digest.items())


def _find_link(child: str, wanted: Input, given: Mapping[str, _Given]) -> Link:
    """Find the manifest of an input: by its weights, else by its name."""
    named = [name for name, one in given.items() if _name_alike(wanted.name, name, one.manifest.target)]
    for name in [*named, *given]:
        if _agree(wanted.digest, given[name]):
            return Link(child, wanted, name, is_same=True)
    candidates = named or [name for name, one in given.items() if _share_tensors(wanted, one)]
    if not candidates:
        return Link(child, wanted)
    found = given[candidates[0]]
    if wanted.names != (found.manifest.names or ""):
        return Link(child, wanted, candidates[0], other_names=True)
    changed = [name for mark, name in found.marks.items() if mark not in wanted.marks] if wanted.marks else []
    return Link(child, wanted, candidates[0], changed=tuple(changed), gone=len(wanted.marks - found.marks.keys()))


def _name_alike(stated: str, *names: str) -> bool:
    """Whether the last parts of two paths are the same: of a checkpoint, or of its manifest."""
    return bool(stated) and _last(stated) in {_last(name) for name in names}


def _last(path: str) -> str:
    last = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return last.removesuffix(".json").removesuffix(".manifest")


def _share_tensors(wanted: Input, given: _Given) -> bool:
    """Whether a manifest has most tensors of an input: it is the input with changes."""
    return 2 * len(given.marks.keys() & wanted.marks) > max(len(given.marks), len(wanted.marks))
