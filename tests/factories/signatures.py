"""Keys and certificates that live as long as a test, and the cases of the rules on signatures."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.compare.signatures.keys import SigningKey, TrustedSigner
from ckptcheck.compare.signatures.sign import MANIFEST_NAME, sign_folder
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.verbs.signed_weights import open_signature_check
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON, CheckpointChanges, write_checkpoint

NEEDED = "the packages of the extra sign are not installed"


class SignatureCase(CheckpointChanges, kw_only=True):
    """A case of a rule on signatures: the base is signed, and then changed."""

    signed_with: Literal["key", "certificate"] = "key"
    days: tuple[int, int] = (-1, 365)
    """From when to when the certificate is valid, in days from now."""
    verified_with: Literal["key", "other key", "certificate", "other certificate"] = "key"
    by: Literal["ckptcheck", "model_signing", "model_signing shards"] = "ckptcheck"
    """Who signs."""
    of: str = ""
    """A folder of fixtures/checkpoints whose signature is copied into this one; empty for the base's own."""
    left_out: list[str] = []
    """Files that the signer ignores."""
    bundle: Literal["whole", "none", "unsigned", "restated"] = "whole"
    """What becomes of the signature: restated, it lists other digests than those that were signed."""
    allow_expired: bool = False
    ignore_unsigned: bool = False


def write_key(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """Write a pair of keys on P-256; return the private and the public one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def write_certificate(folder: Path, private: Path, begin: int = -1, end: int = 365) -> tuple[Path, Path]:
    """Write a certificate of a key that is valid between two days from now; return it and that of its issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def build(subject: str, key: Any, first: int, last: int) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("test root"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=first))
            .not_valid_after(now + timedelta(days=last))
        )

    root = ec.generate_private_key(ec.SECP256R1())
    issuer = build("test root", root.public_key(), -3650, 3650).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    signer = build("test release", key.public_key(), begin, end).add_extension(usage, critical=True)
    paths = folder / "signer.crt", folder / "root.crt"
    for path, each in zip(paths, (signer, issuer), strict=True):
        path.write_bytes(each.sign(root, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return paths


def sign_with_model_signing(
    folder: Path, private: Path, *, shard_size: int = 0, ignored: list[str] | None = None
) -> Path:
    """Sign as the package's own command does; shard_size: bytes of a range, 0 for whole files."""
    from model_signing import hashing, signing

    written = folder / "model.sig"
    hashes = hashing.Config()
    if shard_size:
        hashes.use_shard_serialization(shard_size=shard_size)
    hashes.set_ignored_paths(paths=[written.name, *(ignored or [])])
    signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(hashes).sign(folder, written)
    return written


def restate(signature: Path, change: Any) -> None:
    """Change the statement of a signature, and leave what was signed over it as it is."""
    bundle = json.loads(signature.read_bytes())
    statement = json.loads(b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement)
    bundle["dsseEnvelope"]["payload"] = b64encode(json.dumps(statement).encode()).decode()
    signature.write_text(json.dumps(bundle))


def build_signature_check(table: Mapping[str, Any], folder: Path) -> SignatureCheck:
    """Sign the base of a case, make the changes of the case, and verify what came out."""
    pytest.importorskip("model_signing", reason=NEEDED)
    case = msgspec.convert(table, SignatureCase)
    private, public = write_key(folder / "keys")
    certificate, root = write_certificate(folder / "keys", private, *case.days)
    _, other = write_key(folder / "others")
    _, other_root = write_certificate(folder / "others", private)
    base = MEGATRON if (MEGATRON / (case.of or case.base)).is_dir() else CHECKPOINTS
    signed = Path(shutil.copytree(base / (case.of or case.base), folder / "signed"))
    if case.by == "ckptcheck":
        key = SigningKey(private, signing_certificate=certificate if case.signed_with == "certificate" else None)
        sign_folder(open_target(str(signed)), signed, key)
    else:
        size = 512 if "shards" in case.by else 0
        sign_with_model_signing(signed, private, shard_size=size, ignored=case.left_out)
    model = folder / "model"
    model.mkdir()
    for name in {MANIFEST_NAME, "model.sig"} & {path.name for path in signed.iterdir()}:
        shutil.copy(signed / name, model / name)
    write_checkpoint(table, model)
    signature = model / "model.sig"
    if case.bundle == "none":
        signature.unlink()
    elif case.bundle == "unsigned":
        bundle = json.loads(signature.read_bytes())
        bundle["dsseEnvelope"]["signatures"] = []
        signature.write_text(json.dumps(bundle))
    elif case.bundle == "restated":
        restate(signature, lambda statement: statement["predicate"]["resources"].pop())
    trusted = {
        "key": TrustedSigner(public),
        "other key": TrustedSigner(other),
        "certificate": TrustedSigner(certificate_chain=(root,), allow_expired=case.allow_expired),
        "other certificate": TrustedSigner(certificate_chain=(other_root,)),
    }[case.verified_with]
    return open_signature_check(
        str(model), signature, trusted, None, ScanOptions(),
        ignore_unsigned=case.ignore_unsigned, jobs=1, runner=None, progress=None,
    )  # fmt: skip
