"""``ckptcheck manifest`` records every tensor of a checkpoint, ``ckptcheck verify`` says what has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcheck import api
from ckptcheck.cli.join import write_part
from ckptcheck.cli.options import (
    EnginePython,
    FailOn,
    FollowLinks,
    Format,
    Like,
    On,
    Part,
    ReportOrParts,
    StoredOutputFile,
    Target,
    TensorJobs,
    TrustConfig,
    WrittenOptions,
    find_runner,
    require_file,
)
from ckptcheck.errors import UsageError


def manifest(
    ctx: typer.Context,
    target: Target,
    output: StoredOutputFile,
    like: Like = None,
    made_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT", help="A checkpoint that the weights were made from, or its manifest; repeatable."
        ),
    ] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="The tool that made them.")] = None,
    tool_version: Annotated[str | None, typer.Option(metavar="VERSION", help="The version of the tool.")] = None,
    command: Annotated[str | None, typer.Option(metavar="COMMAND", help="The command that made them.")] = None,
    follow_links: FollowLinks = False,
    jobs: TensorJobs = None,
    part: Part = None,
    on: On = None,
) -> None:
    """Write dtype, shape and digest (xxh3-128) of every tensor to a file, and the identity of the weights."""
    from ckptcheck.cli import output as out

    if part is not None:
        unused = ("made_from", "tool", "tool_version", "command")
        write_part(
            WrittenOptions(ctx),
            "manifest",
            [target],
            part,
            output,
            jobs,
            unused,
            like=like,
            follow_links=follow_links,
        )
    api.manifest(
        target,
        output,
        like=like,
        made_from=made_from or (),
        tool=tool,
        tool_version=tool_version,
        command=command,
        follow_links=follow_links,
        jobs=jobs,
        runner=find_runner(on),
        observer=out.TERMINAL,
    )


def verify(
    ctx: typer.Context,
    target: Target,
    manifest: Annotated[
        str | None,
        typer.Argument(
            metavar="[MANIFEST]",
            help="The file that ckptcheck manifest wrote, or its s3:// address. A signed model needs none.",
            show_default=False,
        ),
    ] = None,
    like: Like = None,
    signature: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The signature to verify.", show_default="model.sig in TARGET"),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept a signature of this key (PEM).")
    ] = None,
    certificate_chain: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Accept a signature whose certificate leads to this one (PEM), repeatable."),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Accept a keyless signature of this e-mail address or workflow.")
    ] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option(metavar="URL", help="Who vouches for the name of --signer.")
    ] = None,
    trust_config: TrustConfig = None,
    allow_expired: Annotated[bool, typer.Option("--allow-expired", help="Accept an expired certificate.")] = False,
    ignore_unsigned_files: Annotated[
        bool, typer.Option("--ignore-unsigned-files", help="Accept files that the signature does not cover.")
    ] = False,
    made_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="The manifest of what the weights were made from, and of what that was made from; repeatable, in any order.",
        ),
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A running SGLang or vLLM: whether it serves the signed weights, repeatable."),
    ] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Accept servers on other machines.")] = False,
    engine_python: EnginePython = None,
    follow_links: FollowLinks = False,
    format: Format = "text",
    output: ReportOrParts = None,
    fail_on: FailOn = "error",
    jobs: TensorJobs = None,
    part: Part = None,
    on: On = None,
) -> None:
    """Say which tensors changed, moved or vanished since a manifest was written, or since the model was signed.

    Exit codes: 0 the same, 1 findings at or above --fail-on, 2 could not verify.
    """
    from ckptcheck.cli import output as out

    if part is not None:
        if manifest is None:
            raise UsageError("--part needs a manifest: a signature is verified on one machine")
        unused = (
            *("format", "fail_on", "signature", "public_key", "certificate_chain", "signer", "oidc_issuer"),
            *("trust_config", "allow_expired", "ignore_unsigned_files", "made_from"),
            *("attach", "allow_remote", "engine_python"),
        )
        write_part(
            WrittenOptions(ctx),
            "verify",
            [target, manifest],
            part,
            output,
            jobs,
            unused,
            like=like,
            follow_links=follow_links,
        )
    file = require_file(output)
    report = api.verify(
        target,
        manifest,
        like=like,
        signature=signature,
        public_key=public_key,
        certificate_chain=certificate_chain or (),
        signer=signer,
        oidc_issuer=oidc_issuer,
        trust_config=trust_config,
        allow_expired=allow_expired,
        ignore_unsigned_files=ignore_unsigned_files,
        made_from=made_from or (),
        attach=attach or (),
        allow_remote=allow_remote,
        engine_python=engine_python,
        follow_links=follow_links,
        jobs=jobs,
        runner=find_runner(on),
        pictures=out.shows_pictures(format),
        observer=out.TERMINAL,
    )
    out.finish(report, format, file, fail_on)
