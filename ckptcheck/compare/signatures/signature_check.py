"""The evidence of ``verify --signature``: a signature, the files that it covers, and the tensors in those that have changed."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.compare.manifest import Manifest, read_manifest
from ckptcheck.compare.signatures.bundle import Bundle, MalformedSignature, read_bundle
from ckptcheck.compare.signatures.check_bundle import BundleCheck, SignedFiles, check_bundle
from ckptcheck.compare.signatures.keys import TrustedSigner
from ckptcheck.compare.signatures.sign import MANIFEST_NAME
from ckptcheck.compare.verification import Verification, verify_files
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.evidence import Evidence, EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Runner
from ckptcheck.text.formatting import count

LOADED_SUFFIXES = (".json", ".py", ".jinja", ".model", ".txt", ".tiktoken", ".so")
"""Suffixes of the other files that loaders read."""
WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".distcp",
    ".ckpt",
    ".npz",
    ".onnx",
    ".h5",
    ".msgpack",
)
"""Suffixes of files with weights."""


@dataclass(frozen=True)
class SignatureCheck(EvidenceDefaults):
    """A signature, and the files and manifests to compare it with."""

    target: str
    signature: Path
    bundle: Bundle | None
    """None if the file is no signature."""
    check: BundleCheck
    ckpt: Checkpoint | Megatron | None = field(default=None, repr=False)
    """None if no tensor can be read."""
    manifest: Manifest | None = field(default=None, repr=False)
    """The manifest that the signature covers, if its bytes are still the signed ones."""
    verification: Verification | None = field(default=None, repr=False)
    """The tensors of changed files, compared with that manifest; None if no file changed, or without a manifest."""
    named: Verification | None = field(default=None, repr=False)
    """All tensors, compared with the manifest that the user named; None if the user named none."""
    unnamed: str = ""
    """Why the tensors of changed files cannot be named; "" if they can."""
    left_out: tuple[str, ...] = ()
    """Files that loaders read and that the signer left out on purpose."""
    allow_expired: bool = False
    is_attached: bool = False
    """Whether the user wants servers compared with the signed weights."""
    served: Evidence | None = field(default=None, repr=False)
    """The servers' answers; None if no server was asked."""
    kind: str = "signature"

    @property
    def is_as_signed(self) -> bool:
        """Whether the trusted signer signed these files, and all of them."""
        is_expired = self.check.expired is not None and not self.allow_expired
        return not (self.check.refusal or is_expired or self.left_out) and self.files == SignedFiles()

    @property
    def files(self) -> SignedFiles:
        """The state of the signed files."""
        return self.check.files

    @cached_property
    def other_model(self) -> str | None:
        """Return a sentence if the signature is of another model; None if it is of this one."""
        if self.bundle is None or self.check.refusal:
            return None
        if self.verification is not None:
            return f"{self.signature.name}: {said}" if (said := self.verification.other_model) else None
        changed = {item.file for item in self.files.changed}
        if len(self.bundle.files) < 2 or self.bundle.files - changed - set(self.files.missing):
            return None
        model = f" ({self.bundle.model})" if self.bundle.model else ""
        return (
            f"{self.signature.name} is of another model{model} or another state of it: of the {len(self.bundle.files)} files "
            "that it covers, none is here as it was signed"
        )

    def require_signer(self) -> None:
        """Skip a rule if no trusted signer vouches for the signature's statement. Raises Skip."""
        if self.check.refusal:
            raise Skip("the signature is not verified, see SIG001")

    @property
    def sections(self) -> tuple[Section, ...]:
        """The measurements of servers."""
        return self.served.sections if self.served is not None else ()

    def view_for(self, kind: str) -> object | None:
        """Return this evidence; for rules on a manifest the comparison with it."""
        if kind == "manifest":
            return self.named
        of_servers = self.served.view_for(kind) if self.served is not None else None
        return of_servers if of_servers is not None else super().view_for(kind)

    @property
    def failed_to(self) -> str:
        """The verb for a failure: servers are compared."""
        return self.served.failed_to if self.served is not None else "read"

    @property
    def identities(self) -> Mapping[str, str]:
        """The identity of the signed weights, and those of the servers."""
        signed = self.manifest.identity if self.manifest is not None and self.is_as_signed else None
        return ({"signed": signed} if signed else {}) | dict(self.served.identities if self.served is not None else {})

    @property
    def headline(self) -> str:
        """How many files are unchanged since the signature."""
        number = len(self.bundle.files) if self.bundle is not None else 0
        return f"the signature is verified, and {count(number, 'file is', 'files are')} as signed"

    @property
    def subject(self) -> str:
        """The sides of the check, in words."""
        files = count(len(self.bundle.files), "signed file") if self.bundle is not None else "no signed file"
        what = self.ckpt.subject if self.ckpt is not None else "files"
        servers = f" · {self.served.subject}" if self.served is not None else ""
        return f"{what} · against a signature of {files}{servers}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Files that could not be read, and servers that could not be compared."""
        files = self.ckpt.unread if self.ckpt is not None else {}
        return {**files, **(self.served.unread if self.served is not None else {})}

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors and bytes."""
        if self.ckpt is not None:
            return self.ckpt.counts
        return {"files": len(self.bundle.files) if self.bundle is not None else 0, "tensors": 0, "bytes": 0}


def check_signature(
    ckpt: Checkpoint | Megatron | None,
    target: str,
    folder: Path,
    signature: Path,
    signer: TrustedSigner,
    *,
    named: Verification | None = None,
    ignore_unsigned: bool = False,
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SignatureCheck:
    """Verify the signature of a folder; of a changed file find the changed tensors.

    ignore_unsigned: report no file that the signature does not cover. An unchanged file is read once, for its digest.
    Raises CkptcheckError for an unreadable key, and EvidenceError for an unreadable file.
    """
    try:
        bundle = read_bundle(signature)
    except MalformedSignature as error:
        return SignatureCheck(target, signature, None, BundleCheck(str(error)), ckpt, named=named)
    check = check_bundle(bundle, folder, signature, signer, follow_links=follow_links)
    if ignore_unsigned:
        check = replace(check, files=replace(check.files, unsigned=()))
    files = check.files
    manifest, verification, unnamed = None, None, ""
    if check.refusal is None and MANIFEST_NAME in bundle.files:
        touched = {item.file for item in files.changed} | {*files.missing, *files.unsigned}
        try:
            if MANIFEST_NAME not in touched:
                manifest = read_manifest(folder / MANIFEST_NAME)
            if manifest is not None and ckpt is not None and any(map(is_weights, touched)):
                verification = verify_files(ckpt, manifest, touched, jobs=jobs, runner=runner, progress=progress)
        except EvidenceError as error:
            unnamed = error.message
        except CkptcheckError as error:
            manifest, unnamed = None, error.message
    return SignatureCheck(
        target,
        signature,
        bundle,
        check,
        ckpt,
        manifest,
        verification,
        named,
        unnamed,
        () if ignore_unsigned or check.refusal else tuple(_list_left_out(bundle, folder)),
        signer.allow_expired,
    )


def _list_left_out(bundle: Bundle, folder: Path) -> Iterator[str]:
    """Yield the files that loaders read and the signer left out, without the files of git or of a download.

    The files are those of the folder, whatever the signature names: no path of it is opened, and no link is followed.
    """
    ignored = {posixpath.normpath(path) for path in bundle.ignored}
    ignored = {path for path in ignored if not path.startswith((".", "/"))}
    for parent, _, names in os.walk(folder) if ignored else ():
        above = Path(parent).relative_to(folder)
        is_left_out = any(path.as_posix() in ignored for path in (above, *above.parents))
        for name in sorted(names):
            file = (above / name).as_posix()
            if name.endswith((*WEIGHT_SUFFIXES, *LOADED_SUFFIXES)) and (is_left_out or file in ignored):
                yield file


def is_weights(file: str) -> bool:
    """Whether a file may hold tensors, by its name."""
    return file.endswith((*WEIGHT_SUFFIXES, ".index.json"))


def list_tensors(check: SignatureCheck, file: str, ranges: Iterable[tuple[int, int | None]] = ()) -> list[str]:
    """Return the tensors that a file holds now; with ranges of its bytes, only the tensors that touch one."""
    ckpt = check.ckpt
    if not isinstance(ckpt, Checkpoint) or file not in ckpt.shards:
        return []
    shard, wanted = ckpt.shards[file], list(ranges)
    if any(begin < shard.data_start for begin, _ in wanted):
        wanted = []  # the header is among them
    found = []
    for name, tensor in shard.tensors.items():
        begin, end = (shard.data_start + offset for offset in tensor.data_offsets)
        if not wanted or any(begin < (last or end) and first < end for first, last in wanted):
            found.append(name)
    return found
