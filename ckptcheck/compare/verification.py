"""Compares a checkpoint as it is now with its manifest: tensor by tensor, and by the identity of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.identity import Identity, SetDifference, compare_sets, plan_stream_identity
from ckptcheck.compare.manifest import Manifest, ManifestEntry, digest_checkpoint
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Local, Runner
from ckptcheck.text.formatting import count, natural_sort_key
from ckptcheck.values.digest import digest_zeros

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

FEWEST_TELLING = 8
"""With fewer tensors no manifest counts as another model's: the report lists each tensor."""
SAME_STRUCTURE = 0.9
"""Share of names with the same shape on both sides at which the architecture counts as the same."""
MOST_KEPT = 0.1
"""Share of tensors that another model may have in common with the manifest's: a frozen embedding, constants."""


@dataclass(frozen=True)
class Verification(EvidenceDefaults):
    """The evidence of `verify`: a checkpoint as it is now, and its manifest."""

    ckpt: Checkpoint | Megatron
    manifest: Manifest
    # Name → the tensor as it is now.
    current: Mapping[str, ManifestEntry] = field(repr=False)
    # Name of a listed tensor → why it cannot be read; `current` lacks these.
    unreadable: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The set of weights as it is now; None if it has no identity, or if the manifest lists none.
    identity: Identity | None = None
    kind: str = "manifest"

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name that is gone → new name of a tensor with equal dtype, shape and bytes.

        Each new name is used once. Tensors of zeros are left out, because any two of one shape are equal.
        """
        new: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
        for name in sorted(self.current.keys() - self.manifest.tensors.keys(), key=natural_sort_key, reverse=True):
            new.setdefault(self.current[name].content, []).append(name)
        new_names = {}
        for name in sorted(
            self.manifest.tensors.keys() - self.current.keys() - self.unreadable.keys(), key=natural_sort_key
        ):
            old = self.manifest.tensors[name]
            if new.get(old.content) and old.digest != digest_zeros(old.nbytes):
                new_names[name] = new[old.content].pop()
        return new_names

    @cached_property
    def is_other_layout(self) -> bool:
        """Whether the layout differs from the manifest's: a listed tensor is gone, and all its parts are there."""
        if self.identity is None:
            return False
        current = self.identity.tensors
        gone = self.manifest.tensors.keys() - self.current.keys() - self.unreadable.keys() - self.renamed.keys()
        return any(parts and current.keys() >= {*parts} for parts in map(self.manifest.list_parts, gone))

    @cached_property
    def changed_weights(self) -> SetDifference:
        """The plain tensors in which the set now differs from the manifest."""
        return compare_sets(self.manifest.weights, self.identity.tensors if self.identity is not None else {})

    @property
    def identities(self) -> Mapping[str, str]:
        """The identity of the set now, and that of the manifest."""
        now = {"target": self.identity.identity} if self.identity is not None else {}
        return now | ({"manifest": self.manifest.identity} if self.manifest.identity is not None else {})

    @cached_property
    def other_model(self) -> str | None:
        """Return a sentence if the manifest is of another model, or of another state of this one; None if it matches.

        The judgement uses tensors whose bytes occur once in the manifest: norms of ones are alike in any two models.
        """
        listed = self.manifest.tensors
        occurrences = Counter(entry.content for entry in listed.values())
        telling = [
            name for name, entry in listed.items() if occurrences[entry.content] == 1 and name not in self.unreadable
        ]
        kept = [name for name in telling if name in self.renamed or self._is_unchanged(name)]
        if len(telling) < FEWEST_TELLING or len(kept) > MOST_KEPT * len(telling):
            return None
        named = [name for name in listed if name in self.current]
        alike = [name for name in named if self.current[name].shape == listed[name].shape]
        cast = [name for name in alike if self.current[name].dtype != listed[name].dtype]
        if 2 * len(cast) > len(listed):
            return None  # the same model in another dtype
        source = f"the manifest, which was written of {self.manifest.target}, is of another"
        number = f"{len(kept) or 'none'} of {count(len(telling), 'tensor')}"
        same_values = f"{number} {'have' if len(kept) > 1 else 'has'} the same values"
        if len(alike) > SAME_STRUCTURE * len(listed.keys() | self.current.keys()):
            return f"{source} step or another training of this architecture: names and shapes agree, and {same_values}"
        new = len(self.current) - len(named)
        return (
            f"{source} model: of its {count(len(listed), 'tensor')}, {len(named):,} are here by name, {len(alike):,} of them "
            f"with the same shape; {count(new, 'tensor')} here {'is' if new == 1 else 'are'} not in it; {same_values}"
        )

    @property
    def headline(self) -> str:
        """How many tensors are unchanged; "" if one changed."""
        if self.current.keys() != self.manifest.tensors.keys() or not all(map(self._is_unchanged, self.current)):
            return ""
        return f"{count(len(self.current), 'tensor is', 'tensors are')} unchanged, byte for byte"

    def require_same_layout(self) -> None:
        """Skip a rule about stored tensors if the layout of the weights differs from the manifest's. Raises Skip."""
        if self.is_other_layout:
            raise Skip("the weights are stored in another layout, see MAN005")

    def require_this_model(self) -> None:
        """Skip a rule that would list every tensor, if the manifest is of another model or layout. Raises Skip."""
        self.require_same_layout()
        if self.other_model:
            raise Skip("the manifest is of another model or another state of it, see MAN001")

    def _is_unchanged(self, name: str) -> bool:
        return name in self.current and self.current[name].content == self.manifest.tensors[name].content

    @property
    def target(self) -> str:
        """What the user named."""
        return self.ckpt.target

    @property
    def subject(self) -> str:
        """What is compared with what."""
        return f"{self.ckpt.subject} · against a manifest of {count(len(self.manifest.tensors), 'tensor')}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Shards that could not be read."""
        return self.ckpt.unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors and bytes."""
        return self.ckpt.counts


def verify_manifest(
    ckpt: Checkpoint | Megatron,
    manifest: Manifest,
    reference: Checkpoint | Megatron | None = None,
    *,
    jobs: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Digest a checkpoint as it is now, for comparison with its manifest.

    reference: see `build_manifest`. Raises EvidenceError if a file cannot be read, or if manifest and checkpoint use
    different naming conventions, so that no tensor can be compared.
    """
    plan = None
    if manifest.identity is not None:
        try:
            plan = plan_stream_identity(ckpt, reference)
        except EvidenceError:
            if reference is not None:
                raise
    if plan is not None and plan.identity.names != manifest.names:
        raise EvidenceError(
            f"the manifest has {manifest.names}'s names and {ckpt.target} {plan.identity.names}'s, so no tensor can be compared",
            hint="give --like with a Hugging Face checkpoint of the model to the command that reads the Megatron run",
        )
    unreadable: dict[str, str] = {}
    entries, identity = digest_checkpoint(ckpt, plan, runner or Local(jobs), progress, unreadable)
    return Verification(ckpt, manifest, entries, unreadable, identity)
