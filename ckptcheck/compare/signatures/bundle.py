"""Reads the file of a signature: a Sigstore bundle whose in-toto statement lists the digests of a model's files.

Formats: https://docs.sigstore.dev/about/bundle/, https://github.com/in-toto/attestation/tree/main/spec/v1, and the predicate
``https://model_signing/signature/v1.0`` of OpenSSF model signing. Callers must not trust anything from here before
`check_signature`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from ckptcheck.errors import EvidenceError
from ckptcheck.text.file_io import read_whole_file

DEFAULT_NAME = "model.sig"
"""The file name that model_signing gives a signature by default."""
LARGEST = 1 << 27
"""Bytes of the largest signature that is read: a signature of 100,000 files has about 20 MB."""
PREDICATE = "https://model_signing/signature/v1.0"
OLD_PREDICATE = "https://model_signing/Digests/v0.1"
"""Predicate of model_signing 0.2, whose subjects are the files."""
HASHES = ("sha256", "blake2", "blake2b", "blake3")

SignerKind = Literal["key", "certificate", "keyless"]


class MalformedSignature(Exception):
    """A file is no signature of a model; the message is one sentence."""


class SignedItem(msgspec.Struct, frozen=True):
    """A file that the signature covers, or a range of its bytes."""

    name: str
    """The name in the statement: the path in the model's folder, and for a range ``:START:END``."""
    file: str
    digest: str
    """Hexadecimal."""
    begin: int = 0
    end: int | None = None
    """None: the end of the file."""


class Bundle(msgspec.Struct, frozen=True):
    """The content of a signature, not yet verified."""

    raw: bytes
    """The bundle; no JSON member occurs twice in it."""
    kind: SignerKind
    model: str
    """The name of the folder that was signed."""
    items: tuple[SignedItem, ...]
    method: Literal["files", "shards"]
    hash_type: str
    shard_size: int
    ignored: tuple[str, ...]
    """Paths that the signer left out."""
    key_hint: str = ""
    """SHA-256 of the public key in its PEM form; "" if the signer wrote none."""
    certificates: tuple[bytes, ...] = ()
    """The signer's certificate and those that lead to its root, each as DER."""

    @property
    def files(self) -> frozenset[str]:
        """The files that the signature covers."""
        return frozenset(item.file for item in self.items)


class _Signature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Certificate(msgspec.Struct, rename="camel"):
    raw_bytes: str


class _Chain(msgspec.Struct):
    certificates: list[_Certificate]


class _PublicKey(msgspec.Struct):
    hint: str | None = None


class _Material(msgspec.Struct, rename="camel"):
    public_key: _PublicKey | None = None
    x509_certificate_chain: _Chain | None = msgspec.field(default=None, name="x509CertificateChain")
    certificate: _Certificate | None = None
    tlog_entries: list[dict[str, Any]] = []


class _File(msgspec.Struct, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


class _Subject(msgspec.Struct):
    digest: dict[str, str]
    name: str = ""


class _Statement(msgspec.Struct, rename="camel"):
    predicate_type: str
    subject: list[_Subject]
    predicate: msgspec.Raw = msgspec.Raw(b"{}")


class _Resource(msgspec.Struct):
    name: str
    digest: str


class _Serialization(msgspec.Struct):
    method: Literal["files", "shards"]
    hash_type: str
    # A number of a protobuf, which writes 512 as 512.0.
    shard_size: float = 0
    ignore_paths: list[str] = []


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


def read_bundle(path: Path) -> Bundle:
    """Read a signature. Raises MalformedSignature, and EvidenceError if the file cannot be read."""
    try:
        raw = read_whole_file(path, LARGEST)
    except FileNotFoundError:
        raise MalformedSignature(f"they are not signed, there is no {path.name}") from None
    except OSError as error:
        raise EvidenceError(f"cannot read the signature {path}: {error.strerror or error}") from error
    return parse_bundle(raw)


def parse_bundle(raw: bytes) -> Bundle:
    """Parse the bytes of a signature. Raises MalformedSignature."""
    try:
        # JSON parsers disagree on repeated members: model_signing must not verify another member than the one read
        # here.
        raw = msgspec.json.encode(msgspec.json.decode(raw))
        file = msgspec.json.decode(raw, type=_File)
        statement = msgspec.json.decode(_decode(file.dsse_envelope.payload), type=_Statement)
        if statement.predicate_type == PREDICATE:
            predicate = msgspec.json.decode(statement.predicate, type=_Predicate)
        elif statement.predicate_type == OLD_PREDICATE:
            listed = [_Resource(each.name, each.digest.get("sha256", "")) for each in statement.subject]
            predicate = _Predicate(_Serialization("files", "sha256"), listed)
        else:
            raise MalformedSignature(f"it states {statement.predicate_type!r}, which is no signature of a model")
        material = file.verification_material
        chain = material.x509_certificate_chain
        certificates = chain.certificates if chain is not None else []
        return _assemble(raw, file, statement, predicate, tuple(_decode(each.raw_bytes) for each in certificates))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedSignature(f"it is no Sigstore bundle of a model: {error}") from error


def _assemble(
    raw: bytes, file: _File, statement: _Statement, predicate: _Predicate, certificates: tuple[bytes, ...]
) -> Bundle:
    serialization, material = predicate.serialization, file.verification_material
    if not file.dsse_envelope.signatures:
        raise MalformedSignature("it is unsigned: the bundle has a statement and no signature")
    if not predicate.resources:
        raise MalformedSignature("it covers no file")
    if serialization.hash_type not in HASHES:
        raise MalformedSignature(f"it has digests of the unknown kind {serialization.hash_type!r}")
    if serialization.method == "shards" and not 1 <= serialization.shard_size < 1 << 62:
        raise MalformedSignature(f"it covers ranges of {serialization.shard_size:g} bytes")
    kind: SignerKind = "key" if material.public_key is not None else "certificate" if certificates else "keyless"
    return Bundle(
        raw,
        kind,
        statement.subject[0].name if statement.predicate_type == PREDICATE and statement.subject else "",
        tuple(_list_items(predicate)),
        serialization.method,
        serialization.hash_type,
        int(serialization.shard_size),
        tuple(serialization.ignore_paths),
        (material.public_key.hint or "") if material.public_key is not None else "",
        certificates,
    )


def _list_items(predicate: _Predicate) -> Iterator[SignedItem]:
    for resource in predicate.resources:
        file, begin, end = resource.name, "0", ""
        if predicate.serialization.method == "shards":
            file, begin, end = ([*resource.name.rsplit(":", 2), "", ""])[:3]
            if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in (begin, end)):
                raise MalformedSignature(f"it covers {resource.name!r}, which is no range of a file")
        yield SignedItem(resource.name, file, resource.digest, int(begin), int(end) if end else None)


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
