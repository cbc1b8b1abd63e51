"""Signatures: model_signing accepts ours and we accept its; what either refuses, the other refuses too."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.compare.signatures import keys
from ckptcheck.compare.signatures.sign import MANIFEST_NAME
from ckptcheck.errors import CkptcheckError, EvidenceError, UsageError
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.signatures import NEEDED, restate, sign_with_model_signing, write_certificate, write_key

model_signing = pytest.importorskip("model_signing", reason=NEEDED)
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "model"))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_key(tmp_path / "keys")


def is_accepted(folder: Path, public: Path, signature: Path | None = None) -> bool:
    """Whether model_signing accepts a signature, asked as its own command asks."""
    signature = signature or folder / "model.sig"
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.set_hashing_config(model_signing.hashing.Config().set_ignored_paths(paths=["model.sig"]))
    try:
        config.verify(folder, signature)
    except Exception:
        return False
    return True


# --- both ways ---


def test_the_command_of_model_signing_accepts_ours(
    folder: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands run in this process: importing sigstore anew takes longer than all else here."""
    from click.testing import CliRunner
    from model_signing._cli import main as model_signing_command

    build_app("sign")(["sign", str(folder), "--private-key", str(pair[0])], standalone_mode=False)
    assert capsys.readouterr().err == f"{folder} is signed in {folder / 'model.sig'}\n"
    theirs = ["verify", "key", str(folder), "--signature", str(folder / "model.sig"), "--public_key", str(pair[1])]
    said = CliRunner().invoke(model_signing_command, theirs)
    assert (said.exit_code, said.output) == (0, "Verification succeeded\n")
    report = ckptcheck.verify(folder, public_key=pair[1])
    assert (report.verdict, report.headline) == ("clean", "the signature is verified, and 6 files are as signed")


def test_model_signing_accepts_our_certificates(folder: Path, pair: tuple[Path, Path]) -> None:
    certificate, root = write_certificate(pair[0].parent, pair[0])
    ckptcheck.sign(folder, private_key=pair[0], signing_certificate=certificate, signature=folder.parent / "its.sig")
    theirs = model_signing.verifying.Config().use_certificate_verifier(certificate_chain=[root])
    theirs.verify(folder, folder.parent / "its.sig")
    assert ckptcheck.verify(folder, signature=folder.parent / "its.sig", certificate_chain=root).verdict == "clean"


@pytest.mark.parametrize("algorithm", ["sha256", "blake2", "blake3"])
@pytest.mark.parametrize("method", ["files", "shards"])
def test_we_accept_theirs(algorithm: Any, method: str, folder: Path, pair: tuple[Path, Path]) -> None:
    hashes = model_signing.hashing.Config()
    if method == "shards":
        hashes.use_shard_serialization(hashing_algorithm=algorithm, shard_size=700)
    else:
        hashes.use_file_serialization(hashing_algorithm=algorithm)
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=pair[0])
    config.set_hashing_config(hashes).sign(folder, folder.parent / "its.sig")
    assert ckptcheck.verify(folder, signature=folder.parent / "its.sig", public_key=pair[1]).verdict == "clean"
    with (folder / SHARD).open("ab") as file:
        file.write(b"\0")
    report = ckptcheck.verify(folder, signature=folder.parent / "its.sig", public_key=pair[1])
    assert [(finding.code, finding.file) for finding in report.findings] == [("SIG002", SHARD)]


def test_a_model_of_one_file(folder: Path, pair: tuple[Path, Path]) -> None:
    file, signature = folder / SHARD, folder.parent / "its.sig"
    model_signing.signing.Config().use_elliptic_key_signer(private_key=pair[0]).sign(file, signature)
    assert ckptcheck.verify(file, signature=signature, public_key=pair[1]).verdict == "clean"
    flip(file, -1)
    report = ckptcheck.verify(file, signature=signature, public_key=pair[1])
    assert [(finding.code, finding.file) for finding in report.findings] == [("SIG002", SHARD)]


# --- what either refuses ---


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def exchange(one: Path, other: Path) -> None:
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    save_file(change(load_file(path)), path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "a bit": lambda folder: flip(folder / SHARD, -5),
    "a byte more": lambda folder: (folder / SHARD).write_bytes((folder / SHARD).read_bytes() + b"\0"),
    "a byte less": lambda folder: (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:-1]),
    "a shard gone": lambda folder: (folder / SHARD).unlink(),
    "shards exchanged": lambda folder: exchange(folder / SHARD, folder / "model-00001-of-00003.safetensors"),
    "a shard renamed": lambda folder: (folder / SHARD).rename(folder / "other.safetensors"),
    "config changed": lambda folder: (folder / "config.json").write_text("{}"),
    "config gone": lambda folder: (folder / "config.json").unlink(),
    "config empty": lambda folder: (folder / "config.json").write_bytes(b""),
    "a file added": lambda folder: (folder / "modeling.py").write_text("import os"),
    "an empty file added": lambda folder: (folder / "x.safetensors").write_bytes(b""),
    "a folder added": lambda folder: (folder / "empty").mkdir(),
    "a manifest changed": lambda folder: flip(folder / MANIFEST_NAME, 40),
    "a manifest gone": lambda folder: (folder / MANIFEST_NAME).unlink(),
    "header rewritten": lambda folder: rewrite(folder / SHARD, lambda tensors: tensors | {"new": np.ones(1)}),
    "everything gone": lambda folder: [path.unlink() for path in folder.iterdir() if path.name != "model.sig"],
    "garbage for weights": lambda folder: (folder / SHARD).write_bytes(b"\xff" * 40),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_model_signing_refuses_is_refused(change: str, folder: Path, pair: tuple[Path, Path]) -> None:
    ckptcheck.sign(folder, private_key=pair[0])
    CHANGES[change](folder)
    report = ckptcheck.verify(folder, public_key=pair[1])
    assert (report.verdict == "clean") == is_accepted(folder, pair[1]) == (change in ("nothing", "a folder added"))
    assert (report.exit_code() == 0) == (report.verdict == "clean")
    assert not [reason for _, reason in report.crashed if report.error is None]


def test_a_changed_bundle_is_never_accepted(folder: Path, pair: tuple[Path, Path]) -> None:
    """Whatever one byte of it becomes: either both accept it (white space, an unused field), or we refuse it."""
    original = ckptcheck.sign(folder, private_key=pair[0]).read_bytes()
    chance, accepted = random.Random(7), 0
    for _ in range(30):
        raw = bytearray(original)
        raw[chance.randrange(len(raw))] = chance.randrange(256)
        (folder / "model.sig").write_bytes(raw)
        report = ckptcheck.verify(folder, public_key=pair[1])
        assert {finding.code for finding in report.findings} <= {"SIG001"}
        if report.verdict == "clean":
            accepted += 1
            assert is_accepted(folder, pair[1]), bytes(raw)
    assert accepted < 6


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement["predicate"]["resources"][0].update(digest="00" * 32),
        lambda statement: statement["predicate"].update(resources=[]),
        lambda statement: statement["predicate"]["serialization"].update(ignore_paths=[SHARD]),
        lambda statement: statement["predicate"]["serialization"].update(hash_type="md5"),
        lambda statement: statement["predicate"]["serialization"].update(method="shards"),
        lambda statement: statement.update(predicateType="https://slsa.dev/provenance/v1"),
        lambda statement: statement.update(subject=[]),
    ],
)
def test_a_changed_statement_is_refused(change: Callable[[Any], None], folder: Path, pair: tuple[Path, Path]) -> None:
    restate(ckptcheck.sign(folder, private_key=pair[0]), change)
    (finding,) = ckptcheck.verify(folder, public_key=pair[1]).findings
    assert finding.code == "SIG001"


@pytest.mark.parametrize("is_first", [True, False])
def test_two_statements_in_one_bundle_are_one(is_first: bool, folder: Path, pair: tuple[Path, Path]) -> None:
    """One that was signed, and one that fits the changed files: whoever verifies the first must not compare with the second."""
    signature = ckptcheck.sign(folder, private_key=pair[0])
    genuine = json.loads(signature.read_bytes())["dsseEnvelope"]["payload"]
    flip(folder / SHARD, -5)
    (folder / MANIFEST_NAME).unlink()
    ckptcheck.sign(folder, private_key=write_key(folder.parent / "others")[0], signature=folder.parent / "forged.sig")
    forged = json.loads((folder.parent / "forged.sig").read_bytes())["dsseEnvelope"]["payload"]
    both = [genuine, forged] if is_first else [forged, genuine]
    text = signature.read_text(encoding="utf-8")
    member = '"payload": "' if '"payload": "' in text else '"payload":"'
    start = text.index(member)
    end = text.index('"', start + len(member)) + 1
    doubled = ", ".join(f'"payload": "{each}"' for each in both)
    signature.write_text(text[:start] + doubled + text[end:], encoding="utf-8")
    report = ckptcheck.verify(folder, public_key=pair[1], ignore_unsigned_files=True)
    assert {finding.code for finding in report.findings} <= {"SIG001", "SIG002", "MAN001"}
    assert report.exit_code() == 1


def test_an_expired_certificate_is_refused(folder: Path, pair: tuple[Path, Path]) -> None:
    """model_signing takes the day on which the certificate began for the day of the signature, and accepts it."""
    certificate, root = write_certificate(pair[0].parent, pair[0], -20, -10)
    signature = ckptcheck.sign(folder, private_key=pair[0], signing_certificate=certificate)
    (finding,) = ckptcheck.verify(folder, certificate_chain=[root]).findings
    assert finding.code == "SIG001"
    assert finding.message.startswith("the certificate CN=test release expired on 20")
    assert ckptcheck.verify(folder, certificate_chain=[root], allow_expired=True).verdict == "clean"
    config = model_signing.verifying.Config().use_certificate_verifier(certificate_chain=[root])
    config.set_hashing_config(model_signing.hashing.Config().set_ignored_paths(paths=["model.sig"]))
    config.verify(folder, signature)
    flip(folder / SHARD, -5)
    assert [finding.code for finding in ckptcheck.verify(folder, certificate_chain=[root]).findings] == [
        "MAN001",
        "SIG001",
        "SIG002",
    ]


# --- tensors ---


def test_a_changed_tensor_is_named(folder: Path, pair: tuple[Path, Path]) -> None:
    ckptcheck.sign(folder, private_key=pair[0])
    flip(folder / SHARD, -5)
    report = ckptcheck.verify(folder, public_key=pair[1])
    assert [(finding.code, finding.file, finding.key) for finding in report.findings] == [
        ("MAN001", SHARD, "model.layers.1.self_attn.v_proj.weight"),
        ("SIG002", SHARD, None),
    ]


def test_a_manifest_that_the_user_names_is_held_against_all_tensors(folder: Path, pair: tuple[Path, Path]) -> None:
    ckptcheck.sign(folder, private_key=pair[0])
    report = ckptcheck.verify(folder, folder / MANIFEST_NAME, public_key=pair[1])
    assert report.verdict == "clean"
    assert {"MAN001", "SIG001"} <= set(report.passed)


# --- signing ---


def test_a_manifest_of_other_weights_is_not_signed(folder: Path, pair: tuple[Path, Path]) -> None:
    ckptcheck.sign(folder, private_key=pair[0])
    before = (folder / "model.sig").read_bytes()
    flip(folder / SHARD, -5)
    with pytest.raises(CkptcheckError, match="does not match the weights beside it: model"):
        ckptcheck.sign(folder, private_key=pair[0])
    assert (folder / "model.sig").read_bytes() == before
    ckptcheck.manifest(folder, folder / MANIFEST_NAME)
    ckptcheck.sign(folder, private_key=pair[0])
    assert ckptcheck.verify(folder, public_key=pair[1]).verdict == "clean"


def test_half_a_checkpoint_is_not_signed(folder: Path, pair: tuple[Path, Path]) -> None:
    (folder / SHARD).unlink()
    with pytest.raises(EvidenceError, match=rf"no manifest of .* can be written: {SHARD}"):
        ckptcheck.sign(folder, private_key=pair[0])
    assert not {MANIFEST_NAME, "model.sig"} & {path.name for path in folder.iterdir()}


def test_a_key_with_a_password(folder: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair[0].read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"opensesame")
    pair[0].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.sign(folder, private_key=pair[0])
    assert "CKPTCHECK_KEY_PASSWORD" in str(caught.value.hint)
    monkeypatch.setenv("CKPTCHECK_KEY_PASSWORD", "opensesame")
    ckptcheck.sign(folder, private_key=pair[0])
    assert is_accepted(folder, pair[1])


def test_links_are_read_where_the_user_says_so(folder: Path, pair: tuple[Path, Path]) -> None:
    outside = folder.parent / "blob"
    (folder / "config.json").rename(outside)
    (folder / "config.json").symlink_to(outside)
    with pytest.raises(EvidenceError, match=r"config\.json is a link") as caught:
        ckptcheck.sign(folder, private_key=pair[0])
    assert "--follow-links" in str(caught.value.hint)
    ckptcheck.sign(folder, private_key=pair[0], follow_links=True)
    with pytest.raises(EvidenceError, match=r"config\.json is a link"):
        ckptcheck.verify(folder, public_key=pair[1])
    assert ckptcheck.verify(folder, public_key=pair[1], follow_links=True).verdict == "clean"
    assert not [path for path in folder.parent.iterdir() if path.suffix == ".sig"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("connection refused"), "cannot be reached from this machine, so nothing is signed"),
        (RuntimeError("the token has expired"), "Sigstore refuses, so nothing is signed: RuntimeError: the token has"),
    ],
)
def test_sigstore_fails_after_its_trust_was_read(
    error: Exception, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trust may lie in a cache; the certificate and the log are asked for when it signs."""

    def sign(*_: Any) -> None:
        raise error

    monkeypatch.setattr(model_signing.signing.Config, "use_sigstore_signer", lambda self, **_: self)
    monkeypatch.setattr(model_signing.signing.Config, "sign", sign)
    with pytest.raises(CkptcheckError, match=message):
        ckptcheck.sign(folder, keyless=True)
    assert not (folder / "model.sig").exists()


def test_a_keyless_signature_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no network here: what is checked is what Sigstore would be asked."""
    asked: list[dict[str, Any]] = []

    def use_sigstore(self: Any, **options: Any) -> None:
        asked.append(options)
        raise ConnectionError("no network")

    for module, name in ((model_signing.signing, "signer"), (model_signing.verifying, "verifier")):
        monkeypatch.setattr(module.Config, f"use_sigstore_{name}", use_sigstore)
    with pytest.raises(CkptcheckError, match=r"cannot be reached .* so nothing is signed .*: no network") as no:
        ckptcheck.sign(folder, keyless=True)
    assert no.value.hint is not None
    assert no.value.hint.startswith("run it where there is a network; --private-key works without one")
    assert not (folder / "model.sig").exists()
    monkeypatch.setenv("CKPTCHECK_IDENTITY_TOKEN", "token")
    with pytest.raises(CkptcheckError):
        ckptcheck.sign(folder, keyless=True)
    sign_with_model_signing(folder, write_key(folder.parent)[0])
    with pytest.raises(CkptcheckError, match="nothing is verified without a key: no network"):
        ckptcheck.verify(folder, signer="release@example.org", oidc_issuer="https://accounts.example.org")
    assert asked == [
        {"use_ambient_credentials": True, "identity_token": None, "trust_config": None},
        {"use_ambient_credentials": False, "identity_token": "token", "trust_config": None},
        {"identity": "release@example.org", "oidc_issuer": "https://accounts.example.org", "trust_config": None},
    ]


def test_what_is_not_installed_is_said(folder: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "model_signing"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(CkptcheckError, match="signatures need the package model-signing") as caught:
        ckptcheck.sign(folder, private_key=pair[0])
    assert caught.value.hint == keys.EXTRA_HINT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is nothing to verify with"),
        ({"signature": "model.sig"}, "--signature model.sig needs the signer to trust"),
        (
            {"public_key": "a", "certificate_chain": "b"},
            "a signature is verified with a key, with certificates or with",
        ),
        ({"signer": "a"}, "--signer and --oidc-issuer go together"),
        ({"public_key": "a", "trust_config": "b"}, "--trust-config has no effect without --signer"),
        ({"public_key": "a", "allow_expired": True}, "--allow-expired has no effect without --certificate-chain"),
        ({"ignore_unsigned_files": True}, "--ignore-unsigned-files has no effect without a signature"),
    ],
)
def test_a_signature_needs_somebody_to_trust(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        ckptcheck.verify(folder, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a model is signed with a key or with an identity$"),
        ({"private_key": "a", "keyless": True}, "a model is signed with a key or with an identity, not with both"),
        ({"private_key": "a", "certificate_chain": "b"}, "--certificate-chain has no effect without"),
        ({"keyless": True, "signing_certificate": "b"}, "--signing-certificate has no effect with --keyless"),
        ({"private_key": "a", "trust_config": "b"}, "--trust-config has no effect without --keyless"),
        ({"private_key": "nowhere"}, "cannot read nowhere: No such file"),
    ],
)
def test_a_signature_needs_something_to_sign_with(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(CkptcheckError, match=f"^{message}"):
        ckptcheck.sign(folder, **options)


def test_what_the_signer_left_out_is_looked_for_in_the_folder_alone(folder: Path, pair: tuple[Path, Path]) -> None:
    """A signature names paths, and none of them is opened."""
    (folder.parent / "secret.json").write_text("{}")
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "a.py").write_text("")
    sign_with_model_signing(folder, pair[0], ignored=["config.json", "sub", "../secret.json"])
    (finding,) = ckptcheck.verify(folder, public_key=pair[1]).findings
    assert finding.names == ("config.json", "sub/deep/a.py")
