"""Lets atheris look for inputs that a door does not survive: it changes bytes, and keeps those that reach new lines of ckptcheck.

Run ``make fuzz GUIDED=1 DOOR=signature``. atheris (https://github.com/google/atheris) is not installed with the other tools;
without it the command says so. It ends at the first input that fails, and names the file in which it keeps it; ``--input FILE``
reads that file again without atheris. The corpus of a door grows in ``.fuzz/DOOR``, and the next run goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CORPUS = Path(".fuzz")
MISSING = (
    "make fuzz GUIDED=1 needs atheris, which is not installed: .venv/bin/pip install atheris (Python 3.11 on Linux)"
)
SECONDS, MEMORY, LONGEST = 5, 1000, 1 << 16
"""Seconds of one input, megabytes of the process with its instrumentation, and bytes of one input."""
DOCUMENTS = ("manifest", "baseline", "settings", "record", "log", "report", "rollouts", "answers", "prompts", "floor")
"""Doors of `tests.fuzzing.documents`, whose documents are the first corpus."""


@dataclass(frozen=True)
class Target:
    """What reads bytes, and the sound inputs to begin with."""

    read: Callable[[bytes], object]
    sound: Callable[[], Iterable[bytes]]


def list_targets(scratch: Path) -> dict[str, Target]:
    """Return the doors whose input is bytes. scratch: a folder for those that read a file."""
    import json

    from ckptcheck.checkpoint.megatron.dcp import read_contents
    from ckptcheck.checkpoint.torch_bin import describe_pickles
    from ckptcheck.checkpoint.torch_file import read_torch_file_bytes
    from ckptcheck.compare.signatures.signature_check import MalformedSignature, parse_bundle
    from ckptcheck.errors import CkptcheckError
    from ckptcheck.runners.parts import _decode_part
    from ckptcheck.runs.saves.open_series import open_kept_saves
    from ckptcheck.runs.saves.state_files import read_json_numbers
    from tests.factories.checkpoint_cases import MEGATRON
    from tests.factories.torch_archives import open_bytes
    from tests.fuzz import CHECKPOINTS, check_header, check_index
    from tests.fuzzing import documents, kept_files

    def read_signature(raw: bytes) -> None:
        with suppress(MalformedSignature):
            parse_bundle(raw)

    def read_pickle(raw: bytes) -> None:
        read_contents(raw)
        read_torch_file_bytes(raw)
        describe_pickles(*open_bytes(raw))

    def read_part(raw: bytes) -> None:
        _decode_part(raw, "part")

    def through_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
        path = scratch / name

        def write_and_read(raw: bytes) -> None:
            path.write_bytes(raw)
            read(path)

        return write_and_read

    def refused(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
        def read_or_refuse(raw: bytes) -> None:
            with suppress(CkptcheckError):
                read(raw)

        return read_or_refuse

    def headers() -> list[bytes]:
        return [path.read_bytes()[: 1 << 14] for path in sorted(CHECKPOINTS.glob("*/*.safetensors"))[:20]]

    def pickles() -> list[bytes]:
        files = [*MEGATRON.rglob("common.pt"), *MEGATRON.rglob(".metadata")]
        return [path.read_bytes() for path in files if path.stat().st_size < LONGEST]

    def bundle() -> list[bytes]:
        return [json.dumps(kept_files.build_signed_model(scratch).bundle).encode()]

    def kept() -> list[bytes]:
        return [kept_files.build_run(scratch)[1]]

    index = CHECKPOINTS / "tiny-llama-sharded" / "model.safetensors.index.json"
    targets = {
        "safetensors": Target(check_header, headers),
        "index": Target(check_index, lambda: [index.read_bytes()]),
        "pickle": Target(refused(read_pickle), pickles),
        "signature": Target(read_signature, bundle),
        "parts": Target(refused(read_part), lambda: [raw for parts in kept_files._parts() for raw in parts.values()]),
        "kept-saves": Target(refused(through_file("k.json", open_kept_saves)), kept),
        "trainer-state": Target(
            refused(read_json_numbers),
            lambda: [path.read_bytes() for path in kept_files.build_run(scratch)[0].rglob("*.json")],
        ),
    }
    for name in DOCUMENTS:
        door = documents.DOORS[name]
        for file, raw in sorted(door.documents().items())[:1]:
            targets[name] = Target(refused(through_file(file, door.read)), lambda raw=raw: [raw])  # type: ignore[misc]
    return targets


def main(arguments: list[str] | None = None) -> int:
    """Fuzz a door, or read one input again; return 0 where nothing failed. libFuzzer ends the process where something does."""
    parser = argparse.ArgumentParser(description="Let atheris look for inputs that a door does not survive.")
    parser.add_argument("--door", required=True, help="what reads the bytes")
    parser.add_argument("--seconds", type=int, default=60, help="how long")
    parser.add_argument("--input", type=Path, help="read this file alone, without atheris")
    options = parser.parse_args(arguments)
    if options.input is None and find_spec("atheris") is None:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as temporary:
        targets = _load_targets(Path(temporary), is_instrumented=options.input is None)
        if options.door not in targets:
            sys.exit(f"the input of {options.door} is not bytes; GUIDED=1 takes DOOR={', '.join(sorted(targets))}")
        target = targets[options.door]
        if options.input is not None:
            target.read(options.input.read_bytes())
            return 0
        _fuzz(options.door, target, options.seconds)
    return 0


def _load_targets(scratch: Path, *, is_instrumented: bool) -> dict[str, Target]:
    if is_instrumented:
        atheris = import_module("atheris")
        with atheris.instrument_imports(include=["ckptcheck"]):
            return list_targets(scratch)
    return list_targets(scratch)


def _fuzz(door: str, target: Target, seconds: int) -> None:
    atheris: Any = import_module("atheris")
    corpus = CORPUS / door
    corpus.mkdir(parents=True, exist_ok=True)
    for number, raw in enumerate(target.sound()):
        (corpus / f"sound-{number}").write_bytes(raw[:LONGEST])
    limits = [f"-max_total_time={seconds}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEMORY}", f"-max_len={LONGEST}"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, f"-artifact_prefix={CORPUS}/{door}-"], target.read)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
