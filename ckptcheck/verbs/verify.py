"""``ckptcheck verify``: says what has changed since a manifest was written, or since a model was signed."""

import os
from typing import TYPE_CHECKING, Annotated

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    TRUST,
    Argument,
    CertificateChain,
    FollowLinks,
    Jobs,
    Like,
    Option,
    StrPath,
    Target,
    TrustConfig,
)
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.linter.report import Report
    from ckptcheck.runners.runner import Runner


@verb()
def verify(
    target: Target,
    manifest: Annotated[
        "StrPath | Manifest | None",
        Argument(
            "The file that ckptcheck manifest wrote, or its s3:// address. A signed model needs none.",
            metavar="[MANIFEST]",
        ),
    ] = None,
    *,
    like: Like = None,
    signature: Annotated[
        StrPath | None,
        Option("The signature to verify.", metavar="FILE", shown="model.sig in TARGET", panel=TRUST),
    ] = None,
    public_key: Annotated[
        StrPath | None, Option("Accept a signature of this key (PEM).", metavar="FILE", panel=TRUST)
    ] = None,
    certificate_chain: CertificateChain = (),
    signer: Annotated[
        str | None,
        Option("Accept a keyless signature of this e-mail address or workflow.", metavar="NAME", panel=TRUST),
    ] = None,
    oidc_issuer: Annotated[
        str | None, Option("The OpenID issuer that vouches for the name of --signer.", metavar="URL", panel=TRUST)
    ] = None,
    trust_config: TrustConfig = None,
    allow_expired: Annotated[bool, Option("Accept an expired certificate.", panel=TRUST)] = False,
    ignore_unsigned_files: Annotated[
        bool, Option("Accept files that the signature does not cover.", panel=TRUST)
    ] = False,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    runner: "Runner | None" = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Say which tensors changed, moved or vanished since a manifest was written, or since the model was signed.

    Exit codes: 0 the same, 1 findings at or above --fail-on, 2 could not verify.
    """
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import Manifest, read_manifest
    from ckptcheck.compare.verification import verify_manifest
    from ckptcheck.verbs.reports import add_notes, build_report, check_runner
    from ckptcheck.verbs.signed_weights import (
        choose_signer,
        open_signature_check,
    )

    trusted = choose_signer(
        manifest is None, signature, public_key, several(certificate_chain), signer, oidc_issuer, trust_config,
        allow_expired=allow_expired, ignore_unsigned_files=ignore_unsigned_files,
    )  # fmt: skip
    name, runner = os.fspath(target), check_runner(runner)
    options = ScanOptions(follow_links=follow_links)
    with observer.progress(name) as progress:
        verification = None
        if manifest is not None:
            expected = manifest if isinstance(manifest, Manifest) else read_manifest(os.fspath(manifest))
            ckpt = open_target(name, runner=runner, jobs=jobs, options=options)
            reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
            verification = verify_manifest(ckpt, expected, reference, jobs=jobs, runner=runner, progress=progress)
        if trusted is None:
            assert verification is not None
            return add_notes(build_report(verification, pictures=pictures), runner)
        check = open_signature_check(
            name, to_path(signature), trusted, verification, options,
            ignore_unsigned=ignore_unsigned_files, jobs=jobs, runner=runner, progress=progress,
        )  # fmt: skip
    return add_notes(build_report(check, pictures=pictures), runner)
