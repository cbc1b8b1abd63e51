"""``ckptcheck sign``: signs a model's files and a manifest of its tensors."""

import os
from pathlib import Path
from typing import Annotated

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import TRUST, Argument, CertificateChain, FollowLinks, Jobs, Option, StrPath, TrustConfig
from ckptcheck.verbs.parameter import Given, several, to_path
from ckptcheck.verbs.verb import verb


def reject_unused(given: Given) -> None:
    """Reject options of the other way to sign. Raises UsageError also if neither or both are chosen."""
    keyless = given["keyless"]
    if keyless == (given["private_key"] is not None):
        raise UsageError(
            "a model is signed with a key or with an identity" + (", not with both" if keyless else ""),
            "add --private-key FILE or --keyless",
        )
    if given["signing_certificate"] is None:
        given.reject(["certificate_chain"], "without --signing-certificate")
    if not keyless:
        given.reject(["trust_config"], "without --keyless")


@verb(reject_unused)
def sign(
    target: Annotated[StrPath, Argument("The folder of a checkpoint on this disk.", metavar="TARGET")],
    *,
    signature: Annotated[
        StrPath | None,
        Option("The file of the signature.", "-o --signature", metavar="FILE", shown="model.sig in TARGET"),
    ] = None,
    private_key: Annotated[
        StrPath | None,
        Option("Sign with this key (PEM); CKPTCHECK_KEY_PASSWORD has its password.", metavar="FILE"),
    ] = None,
    keyless: Annotated[
        bool,
        Option(
            "Sign with an identity: that of the CI job, of the token in CKPTCHECK_IDENTITY_TOKEN, or yours by browser.",
            without=("signing_certificate",),
            hint="it belongs to --private-key",
        ),
    ] = False,
    signing_certificate: Annotated[
        StrPath | None, Option("The certificate of the key (PEM).", metavar="FILE", panel=TRUST)
    ] = None,
    certificate_chain: CertificateChain = (),
    trust_config: TrustConfig = None,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    observer: Observer = SILENT,
) -> Path:
    """Sign every file of a model, and a manifest of its tensors that is written beside them.

    `model_signing verify` and `ckptcheck verify` accept the signature. Exit codes: 0 signed, 2 could not sign.

    Returns the file of the signature. Needs the extra ``sign``.

    Raises CkptcheckError where the key cannot sign, or where a manifest in the folder is of other weights.
    """
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.signatures.keys import PASSWORD_VARIABLE, TOKEN_VARIABLE, SigningKey
    from ckptcheck.compare.signatures.sign import sign_folder
    from ckptcheck.text.file_io import expand_home

    name = os.fspath(target)
    folder = Path(expand_home(name))
    if not folder.is_dir():
        raise CkptcheckError(
            f"{name} is no folder on this disk", "name the folder of the model: all its files are signed"
        )
    key = SigningKey(
        to_path(private_key), os.environ.get(PASSWORD_VARIABLE), to_path(signing_certificate),
        tuple(map(Path, several(certificate_chain))), keyless, os.environ.get(TOKEN_VARIABLE), to_path(trust_config),
    )  # fmt: skip
    with observer.progress(name) as progress:
        ckpt = open_target(name, jobs=jobs, options=ScanOptions(follow_links=follow_links))
        written = sign_folder(
            ckpt, folder, key, signature=to_path(signature), follow_links=follow_links, jobs=jobs, progress=progress
        )
    observer.log(f"{name} is signed in {written}")
    return written
