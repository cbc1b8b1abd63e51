"""The evidence of ``verify --signature``: a signature, the files that it covers, and the tensors in those that have changed.

Formats: https://docs.sigstore.dev/about/bundle/, and the statement of OpenSSF model signing. The package model-signing verifies the
signature, hashes the files, and gives the list of signed files; nothing that the signature states is believed before.
"""

from __future__ import annotations

import os
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.compare.manifest import read_manifest
from ckptcheck.compare.signatures.keys import SignerKind, TrustedSigner, quiet, require_packages
from ckptcheck.compare.signatures.sign import MANIFEST_NAME, describe_hash_failure, find_inside
from ckptcheck.compare.verification import Verification, verify_manifest
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Runner
from ckptcheck.text.file_io import read_whole_file
from ckptcheck.text.formatting import count

LARGEST = 1 << 27
"""Bytes of the largest signature that is read: a signature of 100,000 files has about 20 MB."""
LOADED = (
    ".json", ".py", ".jinja", ".model", ".txt", ".tiktoken", ".so", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".distcp",
    ".ckpt", ".npz", ".onnx", ".h5", ".msgpack",
)  # fmt: skip
"""Suffixes of the files that loaders read: settings, code, tokenizers, weights."""
SIGNED_WITH: dict[SignerKind, str] = {
    "key": "a key, and is verified with --public-key",
    "certificate": "a certificate, and is verified with --certificate-chain",
    "keyless": "an identity, and is verified with --signer and --oidc-issuer",
}


class MalformedSignature(Exception):
    """A file is no signature of a model; the message is one sentence."""


class Bundle(msgspec.Struct, rename="camel"):
    """What is read of a signature's file before it is verified: who is said to have signed."""

    verification_material: dict[str, Any]
    dsse_envelope: dict[str, Any]

    @property
    def kind(self) -> SignerKind:
        """What it was signed with."""
        material = self.verification_material
        kinds: dict[str, SignerKind] = {"publicKey": "key", "x509CertificateChain": "certificate"}
        return next((kind for member, kind in kinds.items() if material.get(member) is not None), "keyless")


@dataclass(frozen=True)
class SignedFiles:
    """The state of the files that a signature covers."""

    covered: frozenset[str] = frozenset()
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unsigned: tuple[str, ...] = ()
    """Files of the model that the signature does not cover."""
    left_out: tuple[str, ...] = ()
    """Files that loaders read and that the signer left out on purpose."""

    @property
    def is_as_signed(self) -> bool:
        """Whether all files are there as they were signed, and all that loaders read are signed."""
        return not (self.changed or self.missing or self.unsigned or self.left_out)


@dataclass(frozen=True)
class SignatureCheck(EvidenceDefaults):
    """A signature, and the files and tensors as they are now."""

    target: str
    signature: Path
    refusal: str = ""
    """Why the signature is not the trusted signer's; "" if it is."""
    expired: str = ""
    """Which certificate is not valid today, unless the user accepts that; "" if all are."""
    files: SignedFiles = SignedFiles()
    ckpt: Checkpoint | Megatron | None = field(default=None, repr=False)
    """None if no tensor can be read."""
    identity: str | None = None
    """The identity of the weights that the signed manifest states; None without one."""
    verification: Verification | None = field(default=None, repr=False)
    """The tensors, compared with the manifest that the user named; else with the signed one, if a file changed."""
    kind: str = "signature"

    @property
    def is_as_signed(self) -> bool:
        """Whether the trusted signer signed these files, and all of them."""
        return not (self.refusal or self.expired) and self.files.is_as_signed

    def require_signer(self) -> None:
        """Skip a rule if no trusted signer vouches for the signature's statement. Raises Skip."""
        if self.refusal:
            raise Skip("the signature is not verified, see SIG001")

    def view_for(self, kind: str) -> object | None:
        """Return this evidence; for rules on a manifest the comparison with it."""
        return self.verification if kind == "manifest" else super().view_for(kind)

    @property
    def identities(self) -> Mapping[str, str]:
        """The identity of the signed weights."""
        return {"signed": self.identity} if self.identity and self.is_as_signed else {}

    @property
    def headline(self) -> str:
        """How many files are unchanged since the signature."""
        return f"the signature is verified, and {count(len(self.files.covered), 'file is', 'files are')} as signed"

    @property
    def subject(self) -> str:
        """The sides of the check, in words."""
        files = count(len(self.files.covered), "signed file") if self.files.covered else "no signed file"
        what = self.ckpt.subject if self.ckpt is not None else "files"
        return f"{what} · against a signature of {files}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Files that could not be read."""
        return self.ckpt.unread if self.ckpt is not None else {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors and bytes."""
        if self.ckpt is not None:
            return self.ckpt.counts
        return {"files": len(self.files.covered), "tensors": 0, "bytes": 0}


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

    named: all tensors, compared with a manifest that the user named. ignore_unsigned: report no file that the signature does
    not cover. An unchanged file is read once, for its digest. Raises CkptcheckError for an unreadable key, and EvidenceError
    for an unreadable file.
    """
    require_packages()
    check = SignatureCheck(target, signature, ckpt=ckpt, verification=named)
    try:
        raw = read_whole_file(signature, LARGEST)
        bundle = parse_bundle(raw)
        signed = _verify_bundle(bundle, raw, folder, signer)
    except FileNotFoundError:
        return replace(check, refusal=f"they are not signed, there is no {signature.name}")
    except OSError as error:
        raise EvidenceError(f"cannot read the signature {signature}: {error.strerror or error}") from error
    except MalformedSignature as error:
        return replace(check, refusal=str(error))
    files = _compare_files(signed, folder, find_inside(signature, folder), follow_links=follow_links)
    if ignore_unsigned:
        files = replace(files, unsigned=(), left_out=())
    expired = "" if signer.allow_expired or bundle.kind != "certificate" else _describe_expiry(bundle)
    check = replace(check, files=files, expired=expired)
    touched = {*files.changed, *files.missing, *files.unsigned}
    if MANIFEST_NAME in files.covered - touched:
        # a file that breaks off, or a manifest of another version: the changed file itself is reported all the same
        with suppress(CkptcheckError):
            manifest = read_manifest(folder / MANIFEST_NAME)
            check = replace(check, identity=manifest.identity)
            if ckpt is not None and named is None and touched:
                # by stored tensor, so that a Megatron run needs no --like
                stored = msgspec.structs.replace(manifest, identity=None)
                verified = verify_manifest(ckpt, stored, jobs=jobs, runner=runner, progress=progress)
                check = replace(check, verification=verified)
    return check


def parse_bundle(raw: bytes) -> Bundle:
    """Parse the bytes of a signature. Raises MalformedSignature."""
    try:
        bundle = msgspec.json.decode(raw, type=Bundle)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedSignature(f"it is no Sigstore bundle of a model: {error}") from error
    if not bundle.dsse_envelope.get("signatures"):
        raise MalformedSignature("it is unsigned: the bundle has a statement and no signature")
    return bundle


def _verify_bundle(bundle: Bundle, raw: bytes, folder: Path, signer: TrustedSigner) -> Any:
    """Return model_signing's manifest of the signed files. Raises MalformedSignature if the signer did not sign it."""
    from model_signing import hashing, verifying

    class Listener(hashing.Config):  # type: ignore[misc]
        """Hashes nothing, and keeps the signed manifest, which model_signing compares with once the signature is verified."""

        signed: Any = None

        def hash(self, *_: Any, **__: Any) -> Any:
            return self

        def __eq__(self, signed: object) -> bool:
            self.signed = signed
            return True

        __hash__ = None  # type: ignore[assignment]

    listener = Listener()
    config = verifying.Config().set_hashing_config(listener)
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        signer.configure(config)
        if bundle.kind != signer.kind:
            raise MalformedSignature(f"it was signed with {SIGNED_WITH[bundle.kind]}")
        copy = Path(scratch) / "signature"
        copy.write_bytes(raw)
        try:
            config.verify(folder, copy)
        except Exception as error:
            raise MalformedSignature(_describe_refusal(error, signer)) from error
    return listener.signed


def _compare_files(signed: Any, folder: Path, signature: str | None, *, follow_links: bool) -> SignedFiles:
    """Compare the files with model_signing's manifest of the signed ones. signature: its path, if it lies in the folder."""
    from model_signing import hashing

    form = signed.serialization_type
    is_sharded, ignored = form["method"] == "shards", form.get("ignore_paths", ())
    algorithm = "blake2" if form["hash_type"] == "blake2b" else form["hash_type"]
    digests = {each.identifier: each.digest.digest_hex for each in signed.resource_descriptors()}
    hashes = hashing.Config()
    covers_git = any(name.startswith(".git") for name in digests)
    hashes.set_ignored_paths(paths=[] if signature is None else [signature], ignore_git_paths=not covers_git)
    try:
        if is_sharded:
            hashes.use_shard_serialization(hashing_algorithm=algorithm, shard_size=int(form["shard_size"]))
        else:
            hashes.use_file_serialization(hashing_algorithm=algorithm)
        hashes.set_allow_symlinks(follow_links).add_ignored_paths(model_path=folder, paths=ignored)
        with quiet():
            now = {each.identifier: each.digest.digest_hex for each in hashes.hash(folder).resource_descriptors()}
    except OSError as error:
        raise EvidenceError(f"cannot read {folder}: {error}") from error
    except Exception as error:
        raise describe_hash_failure(error) from error

    def file_of(name: str) -> str:
        """Return the file of a part. model_signing calls a model of a single file a point."""
        file = name.rsplit(":", 2)[0] if is_sharded else name
        return folder.name if file == "." else file

    there, covered = frozenset(map(file_of, now)), frozenset(map(file_of, digests))
    differing = {file_of(name) for name in digests.keys() | now.keys() if digests.get(name) != now.get(name)}
    return SignedFiles(
        covered,
        tuple(sorted(differing & there & covered)),
        tuple(sorted(covered - there)),
        tuple(sorted(there - covered)),
        tuple(_list_left_out(folder, there | {signature})) if ignored else (),
    )


def _list_left_out(folder: Path, known: frozenset[str | None]) -> Iterator[str]:
    """Yield the files that loaders read and that were not hashed, without hidden ones: git's, and those of a download.

    The files are those of the folder, whatever the signature names: no path of it is opened, and no link is followed.
    """
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            file = (Path(parent) / name).relative_to(folder).as_posix()
            if name.endswith(LOADED) and not file.startswith(".") and file not in known:
                yield file


def _describe_refusal(error: Exception, signer: TrustedSigner) -> str:
    """Return a clause that says why a signature failed verification."""
    name = type(error).__name__
    if signer.public_key is not None and str(error).startswith("Key mismatch"):
        return f"it was signed with another key than {signer.public_key.name}"
    if name == "InvalidSignature":
        return (
            "it does not match its own statement: the bundle was changed after it was signed, or another key signed it"
        )
    if name == "X509StoreContextError":
        return f"its certificate does not lead to one of --certificate-chain: {error}"
    if isinstance(error, KeyError):
        return f"the bundle is incomplete: {error} is missing"
    return str(error) or name


def _describe_expiry(bundle: Bundle) -> str:
    """Describe the certificate of a verified bundle that is not valid today, which model_signing does not check; "" for none."""
    from cryptography import x509

    today = datetime.now(UTC)
    with quiet():
        for each in bundle.verification_material["x509CertificateChain"]["certificates"]:
            certificate = x509.load_der_x509_certificate(b64decode(each["rawBytes"]))
            name = certificate.subject.rfc4514_string() or "without a name"
            if certificate.not_valid_after_utc < today:
                return f"the certificate {name} expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
            if certificate.not_valid_before_utc > today:
                return f"the certificate {name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on"
    return ""
