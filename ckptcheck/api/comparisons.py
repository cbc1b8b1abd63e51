"""Compares two sets of weights, or one with its manifest, and names a set by its content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.api.arguments import Bridge, StrPath, check_runner, require_choice, require_ranges, to_path, wrap_single
from ckptcheck.api.report import add_notes, build_report
from ckptcheck.api.signing import (
    add_lineage,
    ask_servers,
    choose_signer,
    find_signature,
    open_signature_check,
    read_inputs,
)
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.compare.identity import Identity
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.linter.report import Report
    from ckptcheck.runners.runner import Runner
    from ckptcheck.text.observer import Advance


def diff(
    first: StrPath,
    second: StrPath,
    *,
    cast: str = "auto",
    rtol: float = 0.0,
    atol: float = 0.0,
    previous: StrPath | None = None,
    base: StrPath | None = None,
    critic: bool = False,
    bridge: Bridge = "builtin",
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Compare two checkpoints tensor by tensor, across layouts, and say why they differ.

    Args:
        first: the reference: a folder (Hugging Face or Megatron), a file, an index, or ``hf://org/name@revision``, ``s3://bucket/folder``;
            or a manifest or identity file on this disk: then each tensor is equal by its digest or not, and no values are compared.
        second: what was made of it; the same.
        cast: the dtype to compare in (bf16, fp16, fp32, fp64), auto for the one that the second declares, or none.
        rtol: relative tolerance, of the first's numbers.
        atol: absolute tolerance.
        previous: the version before `first`, where `second` was to be updated: what `second` still has of it is stale.
        base: the base model of `first`, if that is a LoRA adapter: `second` is compared with the base with the adapter merged
            into it. If `first` is a whole model, the version that both were made from: what `second` still has of it is stale.
        critic: one side is a critic: only the heads may be missing or extra.
        bridge: maps Megatron's tensors by the built-in tables, by mbridge, or compares both mappings.
        follow_links: follow links out of a checkpoint, to regular files.
        jobs: threads that compare; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    """
    from ckptcheck.compare.known_weights import is_known_weights

    if any(map(is_known_weights, (os.fspath(first), os.fspath(second)))):
        given = {"--rtol": rtol, "--atol": atol, "--previous": previous, "--base": base, "--critic": critic}
        given |= {"--cast": cast not in ("auto", "none"), "--bridge": bridge != "builtin", "--on": runner is not None}
        return _diff_known_weights((first, second), given, follow_links=follow_links, jobs=jobs, observer=observer)
    with observer.progress(f"{os.fspath(first)} ↔ {os.fspath(second)}") as progress:
        comparison = open_comparison(
            first=first,
            second=second,
            cast=cast,
            rtol=rtol,
            atol=atol,
            previous=previous,
            base=base,
            critic=critic,
            bridge=bridge,
            follow_links=follow_links,
            jobs=jobs,
            runner=runner,
            progress=progress,
        )
        return add_notes(build_report(comparison, pictures=pictures), runner)


def _diff_known_weights(
    targets: tuple[StrPath, StrPath],
    given: Mapping[str, object],
    *,
    follow_links: bool,
    jobs: int | None,
    observer: Observer,
) -> Report:
    """Compare by digests, where one side is a file of digests. given: option → its value, of those that need values."""
    from ckptcheck.compare.known_weights import (
        compare_known_weights,
        is_known_weights,
        read_known_weights,
        take_identity,
    )

    if useless := [option for option, value in given.items() if value]:
        raise UsageError(
            f"{useless[0]} has no effect with a manifest or an identity file",
            "it has digests, which are equal or not; name both checkpoints to compare values",
        )
    sides = [
        read_known_weights(os.fspath(target))
        if is_known_weights(os.fspath(target))
        else take_identity(identity(target, follow_links=follow_links, jobs=jobs, observer=observer))
        for target in targets
    ]
    return build_report(compare_known_weights(*sides))


def open_comparison(
    *,
    first: StrPath,
    second: StrPath,
    cast: str,
    rtol: float,
    atol: float,
    previous: StrPath | None,
    base: StrPath | None,
    critic: bool,
    bridge: Bridge,
    follow_links: bool,
    jobs: int | None,
    runner: Runner | None,
    progress: Advance | None,
) -> Comparison:
    """Open both sides; see `diff` for the arguments."""
    require_ranges(rtol=rtol, atol=atol, jobs=jobs)
    from ckptcheck.compare.known_weights import is_known_weights
    from ckptcheck.compare.matching.cast import parse_dtype
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.equality import Tolerance
    from ckptcheck.compare.matching.merged_adapter import is_adapter, open_adapter
    from ckptcheck.compare.matching.open_side import open_side

    require_choice("--bridge", bridge, Bridge)
    dtype = cast if cast in ("auto", "none") else parse_dtype(cast)
    if dtype is None:
        raise CkptcheckError(f"{cast!r} is no dtype to compare in", hint="choose auto, none, bf16, fp16, fp32 or fp64")
    if base is not None and previous is not None:
        raise CkptcheckError("--base and --previous both name what came before", "give the one that is meant")
    names, runner = (os.fspath(first), os.fspath(second)), check_runner(runner)
    if any(map(is_known_weights, names)):  # `diff` itself compares these otherwise
        raise UsageError(
            "--part has no effect with a manifest or an identity file", "leave it out: nothing long is read"
        )
    adapter, reference = None, names[0]
    if base is not None and is_adapter(names[0], follow_links=follow_links):
        reference = os.fspath(base)
    elif base is not None:
        previous = base
    sides = (
        open_side(reference, jobs=jobs, follow_links=follow_links, runner=runner),
        open_side(names[1], jobs=jobs, follow_links=follow_links, runner=runner),
    )
    if reference != names[0]:
        adapter = open_adapter(names[0], sides[0], follow_links=follow_links)
    if bridge != "builtin" and sides[0].is_megatron == sides[1].is_megatron:
        raise CkptcheckError(
            f"--bridge {bridge} has no effect between two checkpoints of one form",
            "a bridge maps between Megatron's tensors and Hugging Face's",
        )
    before = (
        open_side(os.fspath(previous), jobs=jobs, follow_links=follow_links, runner=runner)
        if previous is not None
        else None
    )
    comparison = Comparison(
        *sides,
        Tolerance(dtype, rtol, atol),
        critic,
        bridge,
        previous=before,
        adapter=adapter,
        jobs=jobs,
        runner=runner,
        progress=progress,
    )
    # raises CkptcheckError where mbridge is asked for and fails
    _ = comparison.mbridge_mapping
    return comparison


def manifest(
    target: StrPath,
    output: StrPath | None = None,
    *,
    like: StrPath | None = None,
    made_from: StrPath | Sequence[StrPath] = (),
    tool: str | None = None,
    tool_version: str | None = None,
    command: str | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    observer: Observer = SILENT,
) -> Manifest:
    """Return dtype, shape and digest (xxh3-128) of every tensor, and the identity of the weights.

    Args:
        target: a folder (Hugging Face or Megatron), a file, an index, ``hf://org/name@revision`` or ``s3://bucket/folder``.
        output: file or ``s3://…`` that the manifest is written to; None: none.
        like: see `identity`.
        made_from: the checkpoints, or manifests of these, that the weights were made from; the manifest states their identities.
        tool: the tool that made the weights of `made_from`, such as ``llm-compressor``.
        tool_version: its version.
        command: its command.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: tensors read at a time; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        observer: receives messages and progress.

    """
    require_ranges(jobs=jobs)
    sources = wrap_single(made_from)
    if not sources and (tool, tool_version, command) != (None, None, None):
        raise UsageError("--tool, --tool-version and --command have no effect without --made-from")
    if tool_version is not None and tool is None:
        raise UsageError("--tool-version has no effect without --tool")
    from ckptcheck.checkpoint.objects.address import is_object_address
    from ckptcheck.checkpoint.objects.folder import StoredOutput
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.lineage import state_origin
    from ckptcheck.compare.manifest import build_manifest, write_manifest
    from ckptcheck.text.formatting import count
    from ckptcheck.text.model_files import refuse_model_file

    name, runner = os.fspath(target), check_runner(runner)
    written = os.fspath(output) if output is not None else ""
    stored = StoredOutput(written) if is_object_address(written) else None
    if stored is None and output is not None:
        refuse_model_file(Path(output))
    options = ScanOptions(follow_links=follow_links)
    reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
    with observer.progress(name) as progress:
        built = build_manifest(
            open_target(name, runner=runner, jobs=jobs, options=options),
            reference,
            jobs=jobs,
            runner=runner,
            progress=progress,
        )
        if sources:
            inputs = read_inputs(sources, options, jobs=jobs, runner=runner)
            built.made_from = state_origin(
                built, inputs, tool=tool or "", version=tool_version or "", command=command or ""
            )
    if output is not None:
        write_manifest(built, stored or Path(output))
        observer.log(f"{count(len(built.tensors), 'tensor')} written to {output}")
    return built


def identity(
    target: StrPath,
    *,
    like: StrPath | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    observer: Observer = SILENT,
) -> Identity:
    """Return one name for a set of weights, the same for every layout in which they are stored.

    Args:
        target: a folder (Hugging Face, Megatron, or the ranks' files of FSDP as verl saves them), a file, an index,
            ``hf://org/name@revision`` or ``s3://bucket/folder``.
        like: a Hugging Face checkpoint of the same model, whose config says what Megatron's tensors are called there; its weights
            are not read. None: a Megatron run keeps its own names, and has another identity than its export.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: pieces of tensors read at a time; None: as many as there are cores.
        observer: receives messages and progress.

    Raises EvidenceError where a tensor is missing or cannot be read: part of a set of weights has no identity.
    """
    require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.identity import compute_identity, identify_checkpoint
    from ckptcheck.runs.saves.rank_shards import plan_rank_files

    name = os.fspath(target)
    options = ScanOptions(follow_links=follow_links)
    reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
    with observer.progress(name) as progress:
        try:
            ckpt = open_target(name, jobs=jobs, options=options)
        except CkptcheckError:
            plan = plan_rank_files(name, follow_links=follow_links)
            if plan is None:
                raise
            return compute_identity(plan, jobs=jobs or os.cpu_count() or 1, progress=progress)
        return identify_checkpoint(ckpt, reference, jobs=jobs, progress=progress)


def series(
    runs: StrPath | Sequence[StrPath],
    *,
    like: StrPath | None = None,
    history: StrPath | None = None,
    resumed: StrPath | None = None,
    cache: StrPath | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Compare the saves of one run with each other: what moved, what repeats, what the counters say, whether the last is whole.

    Args:
        runs: the folder above ``iter_0000100``, ``checkpoint-100`` or ``global_step_100``, or some of those; ``s3://bucket/run``.
        like: a Hugging Face checkpoint of the same model, whose config says what Megatron's tensors are called there.
        history: the record that `ckptcheck.watch` kept in the job: a save equals what the live trainer held at its step.
        resumed: what was saved right after the run was loaded elsewhere: it equals the save that was loaded.
        cache: file that keeps what was read, so that only saves that are new or were replaced are read; None: none.
        follow_links: follow links out of a save, to regular files.
        jobs: pieces of tensors read at a time; None: as many as there are cores.
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    """
    runs = wrap_single(runs)
    require_ranges(jobs=jobs)
    from ckptcheck.runs.saves.open_series import open_series

    if not runs:
        raise CkptcheckError("there is nothing to compare", hint="name the folder of a run")
    opened = open_series(
        [os.fspath(run) for run in runs],
        like=os.fspath(like) if like is not None else None,
        resumed=os.fspath(resumed) if resumed is not None else None,
        history=Path(history) if history is not None else None,
        cache=Path(cache) if cache is not None else None,
        follow_links=follow_links,
        jobs=jobs,
        observer=observer,
    )
    return build_report(opened, pictures=pictures)


def verify(
    target: StrPath,
    manifest: StrPath | Manifest | None = None,
    *,
    like: StrPath | None = None,
    signature: StrPath | None = None,
    public_key: StrPath | None = None,
    certificate_chain: StrPath | Sequence[StrPath] = (),
    signer: str | None = None,
    oidc_issuer: str | None = None,
    trust_config: StrPath | None = None,
    allow_expired: bool = False,
    ignore_unsigned_files: bool = False,
    made_from: StrPath | Sequence[StrPath] = (),
    attach: str | Sequence[str] = (),
    allow_remote: bool = False,
    engine_python: StrPath | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    runner: Runner | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Say which tensors changed, moved or vanished since a manifest was written, or since the model was signed.

    Args:
        target: the checkpoint as it is now.
        manifest: what `manifest` returned, or the file that it wrote; None where a signature is verified.
        like: see `identity`.
        signature: the model's signature; None, where one of the next three says whom to trust: ``model.sig`` in the folder.
        public_key: accept a signature of this key.
        certificate_chain: accept a signature of a certificate that leads to one of these.
        signer: accept a keyless signature of this identity, for which `oidc_issuer` vouches.
        oidc_issuer: the OpenID Connect issuer of `signer`.
        trust_config: the trust of a Sigstore instance of your own; None: that of the public one, over the network.
        allow_expired: accept a certificate that has expired.
        ignore_unsigned_files: accept files that the signature does not cover.
        made_from: manifests (or checkpoints) of what the weights were made from, and of what those were made from, in any order:
            each link of the chain has to hold.
        attach: URLs of running SGLang or vLLM servers: whether they serve the signed weights, as `attach` finds it out.
        allow_remote: accept servers on other machines.
        engine_python: a Python that has the engine of the servers; None: the one that ckptcheck installed.
        follow_links: follow links out of the checkpoint, to regular files.
        jobs: tensors read at a time; None: as many as there are cores.
        runner: what runs the passes over all bytes: `Local()`, `Parts(folder)`, `Ray(address)`; None: this machine.
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    """
    require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import Manifest, read_manifest
    from ckptcheck.compare.verification import verify_manifest

    servers, origins = wrap_single(attach), wrap_single(made_from)
    trusted = choose_signer(
        manifest is None, signature, public_key, wrap_single(certificate_chain), signer, oidc_issuer, trust_config,
        allow_expired=allow_expired, ignore_unsigned_files=ignore_unsigned_files,
    )  # fmt: skip
    if servers and trusted is None:
        raise UsageError(
            "--attach has no effect without a signature",
            f"ckptcheck refit {os.fspath(target)} --attach URL compares a server with a checkpoint",
        )
    if not servers and (allow_remote or engine_python is not None):
        raise UsageError("--allow-remote and --engine-python have no effect without --attach")
    name, runner = os.fspath(target), check_runner(runner)
    options = ScanOptions(follow_links=follow_links)
    with observer.progress(name) as progress:
        verification = None
        if manifest is not None:
            expected = manifest if isinstance(manifest, Manifest) else read_manifest(os.fspath(manifest))
            ckpt = open_target(name, runner=runner, jobs=jobs, options=options)
            reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
            verification = verify_manifest(ckpt, expected, reference, jobs=jobs, runner=runner, progress=progress)
        sources = read_inputs(origins, options, jobs=jobs, runner=runner)
        if trusted is None:
            assert verification is not None
            noted = replace(verification, unverified=find_signature(name))
            return add_notes(build_report(add_lineage(noted, sources), pictures=pictures), runner)
        check = open_signature_check(
            name, to_path(signature), trusted, verification, options,
            ignore_unsigned=ignore_unsigned_files, jobs=jobs, runner=runner, progress=progress,
        )  # fmt: skip
        check = add_lineage(check, sources)
    if servers:
        check = ask_servers(check, servers, allow_remote=allow_remote, engine_python=engine_python, observer=observer)
    return add_notes(build_report(check, pictures=pictures), runner)


def critic(
    source: StrPath,
    *,
    layouts: str | Sequence[str] = (),
    length: int = 16,
    trainer_python: StrPath | None = None,
    timeout: float = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Report:
    """Compare a critic in transformers with the same critic in megatron-core: values, loss, gradients (``ckptcheck critic``).

    Args:
        source: a critic as a Hugging Face checkpoint on this disk, or a language model, to which a head is added.
        layouts: Megatron's parallel layouts, such as ``tp2`` and ``pp2vpp2``; (): tp1, tp2, pp2 and pp2vpp2 where they fit.
        length: tokens of a sequence.
        trainer_python: a Python that has megatron-core and transformers; None: the one that ckptcheck installed.
        timeout: seconds for any one call.
        pictures: draw what was found, for a notebook.
        observer: receives messages.

    """
    layouts = wrap_single(layouts)
    require_ranges(length=length, timeout=timeout)
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.live.experiments.critic import compare_critic
    from ckptcheck.live.runtime.trainers.critic_layout import CriticLayout

    chosen = [CriticLayout.parse(text) for text in dict.fromkeys(layouts)] or None
    name = os.fspath(source)
    checkpoint = open_target(name)
    if not isinstance(checkpoint, Checkpoint):
        raise CkptcheckError(
            f"{name} is a Megatron run, and both frameworks start from a Hugging Face checkpoint",
            hint="convert it, and compare the two with ckptcheck diff --critic",
        )
    return build_report(
        compare_critic(
            checkpoint, chosen, length=length, python=to_path(trainer_python), timeout=timeout, observer=observer
        ),
        pictures=pictures,
    )
