"""Verifies a bundle with the package model-signing, and names the files that changed since the signature."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.signatures.bundle import Bundle, SignedItem
from ckptcheck.compare.signatures.keys import TrustedSigner, quiet, require_packages
from ckptcheck.compare.signatures.sign import describe_hash_failure, find_inside
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.compare.signatures.bundle import SignerKind

SIGNED_WITH: dict[SignerKind, str] = {
    "key": "a key, and is verified with --public-key",
    "certificate": "a certificate, and is verified with --certificate-chain",
    "keyless": "an identity, and is verified with --signer and --oidc-issuer",
}


@dataclass(frozen=True)
class SignedFiles:
    """The state of the files that a signature covers."""

    changed: tuple[SignedItem, ...] = ()
    """Items whose bytes differ."""
    missing: tuple[str, ...] = ()
    unsigned: tuple[str, ...] = ()
    """Files of the model that the signature does not cover."""


@dataclass(frozen=True)
class BundleCheck:
    """The result of verifying a bundle."""

    refusal: str | None
    """Why the signature is not the trusted signer's; None if it is."""
    expired: str | None = None
    """The date on which the certificate expired; None if it is valid, or without a certificate."""
    files: SignedFiles = SignedFiles()


def check_bundle(
    bundle: Bundle, folder: Path, signature: Path, signer: TrustedSigner, *, follow_links: bool = False
) -> BundleCheck:
    """Verify a signature, and then the files that it covers.

    model_signing decides. This function adds the names of the files, and the expiry of certificates, which
    model_signing does not check. Raises CkptcheckError for an unreadable key, and EvidenceError for an unreadable file.
    """
    require_packages()
    from model_signing import hashing, verifying

    class Hashes(hashing.Config):  # type: ignore[misc]
        """Keeps the digests. model_signing asks for them once the signature is verified, and never before."""

        files: Any = None
        failure: Exception | None = None
        was_asked = False

        def hash(self, *arguments: Any, **options: Any) -> Any:
            self.was_asked = True
            try:
                self.files = super().hash(*arguments, **options)
            except Exception as error:
                self.failure = error
                raise
            return self.files

    hashes = Hashes()
    algorithm = "blake2" if bundle.hash_type == "blake2b" else bundle.hash_type
    if bundle.method == "shards":
        hashes.use_shard_serialization(hashing_algorithm=algorithm, shard_size=bundle.shard_size)
    else:
        hashes.use_file_serialization(hashing_algorithm=algorithm)
    inside = find_inside(signature, folder)
    covers_git = any(file.startswith(".git") for file in bundle.files)
    hashes.set_ignored_paths(paths=[] if inside is None else [inside], ignore_git_paths=not covers_git)
    hashes.set_allow_symlinks(follow_links)
    config = verifying.Config().set_hashing_config(hashes)
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        signer.configure(config)
        if bundle.kind != signer.kind:
            return BundleCheck(f"it was signed with {SIGNED_WITH[bundle.kind]}")
        copy = Path(scratch) / "signature"
        copy.write_bytes(bundle.raw)
        refusal = None
        try:
            config.verify(folder, copy)
        except Exception as error:
            refusal = error
    if not hashes.was_asked:
        return BundleCheck(_describe_refusal(refusal, bundle, signer))
    if isinstance(hashes.failure, OSError):
        raise EvidenceError(f"cannot read {folder}: {hashes.failure}") from hashes.failure
    if hashes.failure is not None:
        raise describe_hash_failure(hashes.failure) from hashes.failure
    files = _compare_files(bundle, hashes.files, folder.name)
    if refusal is not None and files == SignedFiles():
        return BundleCheck(f"model_signing refuses it: {refusal}")
    return BundleCheck(None, _describe_expiry(bundle), files)


def _compare_files(bundle: Bundle, current: Any, name_of_single: str) -> SignedFiles:
    """Compare the signed items with model_signing's manifest of the present files.

    name_of_single: the file that ``.`` stands for: model_signing gives a model of a single file that name.
    """

    def parse(name: str, digest: str) -> SignedItem:
        file, begin, end = name.rsplit(":", 2) if bundle.method == "shards" else (name, "0", "0")
        return SignedItem(name, name_of_single if file == "." else file, digest, int(begin), int(end) or None)

    now = {each.identifier: parse(each.identifier, each.digest.digest_hex) for each in current.resource_descriptors()}
    signed = {item.name: parse(item.name, item.digest) for item in bundle.items}
    there, covered = {item.file for item in now.values()}, {item.file for item in signed.values()}
    changed = [
        item
        for name, item in signed.items()
        if item.file in there and (name not in now or now[name].digest != item.digest)
    ]
    # A file that grew has ranges that the signature does not cover.
    changed += [item for name, item in now.items() if name not in signed and item.file in covered]
    return SignedFiles(
        tuple(sorted(changed, key=lambda item: (item.file, item.begin))),
        tuple(sorted(covered - there)),
        tuple(sorted(there - covered)),
    )


def _describe_refusal(error: Exception | None, bundle: Bundle, signer: TrustedSigner) -> str:
    """Return a clause that says why a signature failed verification."""
    name = type(error).__name__
    if signer.public_key is not None and bundle.key_hint and bundle.key_hint != signer.key_hint():
        return f"it was signed with another key than {signer.public_key.name}"
    if name == "InvalidSignature":
        return "it does not fit what it states: the bundle was changed after it was signed, or another key signed it"
    if name == "X509StoreContextError":
        return f"its certificate does not lead to one of --certificate-chain: {error}"
    if isinstance(error, KeyError):
        return f"it is no whole bundle: {error} is missing"
    return str(error) or name


def _describe_expiry(bundle: Bundle) -> str | None:
    """Describe the certificate of a bundle that is not valid today; None if all are valid."""
    from cryptography import x509

    today = datetime.now(UTC)
    with quiet():
        certificates: Iterable[x509.Certificate] = [x509.load_der_x509_certificate(raw) for raw in bundle.certificates]
    for certificate in certificates:
        name = certificate.subject.rfc4514_string() or "without a name"
        if certificate.not_valid_after_utc < today:
            return f"the certificate {name} expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
        if certificate.not_valid_before_utc > today:
            return f"the certificate {name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on"
    return None
