"""``ckptcheck sign`` signs a model's files and a manifest of its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.options import FollowLinks, TensorJobs, TrustConfig


def sign(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder of a checkpoint on this disk.")],
    private_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sign with this key (PEM); CKPTCHECK_KEY_PASSWORD has its password."),
    ] = None,
    signing_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate of the key (PEM).")
    ] = None,
    certificate_chain: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A certificate between that one and its root (PEM), repeatable."),
    ] = None,
    keyless: Annotated[
        bool,
        typer.Option(
            "--keyless",
            help="Sign with an identity: that of the CI job, of the token in CKPTCHECK_IDENTITY_TOKEN, or yours by browser.",
        ),
    ] = False,
    trust_config: TrustConfig = None,
    signature: Annotated[
        Path | None,
        typer.Option(
            "-o", "--signature", metavar="FILE", help="The file to write.", show_default="model.sig in TARGET"
        ),
    ] = None,
    follow_links: FollowLinks = False,
    jobs: TensorJobs = None,
) -> None:
    """Sign every file of a model, and a manifest of its tensors that is written beside them.

    `model_signing verify` and `ckptcheck verify` accept the signature. Exit codes: 0 signed, 2 could not sign.
    """
    from ckptcheck.cli import output as out

    api.sign(
        target,
        signature=signature,
        private_key=private_key,
        signing_certificate=signing_certificate,
        certificate_chain=certificate_chain or (),
        keyless=keyless,
        trust_config=trust_config,
        follow_links=follow_links,
        jobs=jobs,
        observer=out.TERMINAL,
    )
