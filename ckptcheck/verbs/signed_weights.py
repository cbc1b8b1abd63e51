"""Opens the signature of weights, which `verify` checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.verbs.options import StrPath
from ckptcheck.verbs.parameter import to_path

if TYPE_CHECKING:
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.signatures.keys import TrustedSigner
    from ckptcheck.compare.signatures.signature_check import SignatureCheck
    from ckptcheck.compare.verification import Verification
    from ckptcheck.runners.runner import Runner
    from ckptcheck.text.observer import Advance


def choose_signer(
    is_required: bool,
    signature: StrPath | None,
    public_key: StrPath | None,
    certificate_chain: Sequence[StrPath],
    signer: str | None,
    oidc_issuer: str | None,
    trust_config: StrPath | None,
    *,
    allow_expired: bool,
    ignore_unsigned_files: bool,
) -> TrustedSigner | None:
    """Return the signers whose signature `verify` accepts; None if no signature is requested.

    is_required: there is no manifest to verify with either. Raises UsageError for arguments that contradict each other, and
    for a signature without a signer to trust: a signature that fits no known key proves nothing.
    """
    from ckptcheck.compare.signatures.keys import TrustedSigner

    given = [public_key is not None, bool(certificate_chain), signer is not None]
    hint = "add --public-key FILE, --certificate-chain FILE, or --signer NAME with --oidc-issuer URL"
    if sum(given) > 1:
        raise UsageError(
            "a signature is verified with a key, with certificates or with an identity", "give one of them"
        )
    if (signer is None) != (oidc_issuer is None):
        raise UsageError("--signer and --oidc-issuer go together", "who signed, and who vouches for that name")
    if trust_config is not None and signer is None:
        raise UsageError("--trust-config has no effect without --signer")
    if allow_expired and not certificate_chain:
        raise UsageError("--allow-expired has no effect without --certificate-chain: a key does not expire")
    if not any(given):
        if signature is not None:
            raise UsageError(f"--signature {os.fspath(signature)} needs the signer to trust", hint)
        if ignore_unsigned_files:
            raise UsageError("--ignore-unsigned-files has no effect without a signature", hint)
        if is_required:
            raise UsageError("there is nothing to verify with", f"name a manifest, or for a signature {hint}")
        return None
    return TrustedSigner(
        to_path(public_key),
        tuple(map(Path, certificate_chain)),
        signer,
        oidc_issuer,
        to_path(trust_config),
        allow_expired,
    )


def open_signature_check(
    target: str,
    signature: Path | None,
    trusted: TrustedSigner,
    named: Verification | None,
    options: ScanOptions,
    *,
    ignore_unsigned: bool,
    jobs: int | None,
    runner: Runner | None,
    progress: Advance | None,
) -> SignatureCheck:
    """Verify the signature of a model. named: its tensors against the manifest that the user named."""
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.compare.signatures.sign import DEFAULT_NAME
    from ckptcheck.compare.signatures.signature_check import check_signature
    from ckptcheck.errors import EvidenceError
    from ckptcheck.text.file_io import expand_home

    folder = Path(expand_home(target))
    if not folder.exists():
        raise CkptcheckError(f"{target} does not exist on this disk", "a signature is verified where the files lie")
    if signature is None:
        if not folder.is_dir():
            raise UsageError(f"{target} is a single file", "name its signature with --signature")
        signature = folder / DEFAULT_NAME
    try:
        ckpt = open_target(target, jobs=jobs, options=options)
    except EvidenceError:
        raise
    except CkptcheckError:
        ckpt = None  # files of a format whose tensors ckptcheck does not read have signatures too
    return check_signature(
        ckpt, target, folder, signature, trusted,
        named=named, ignore_unsigned=ignore_unsigned, follow_links=options.follow_links,
        jobs=jobs, runner=runner, progress=progress,
    )  # fmt: skip
