"""A folder as somebody might publish it: beside the weights, a file for every module that a Python could look for there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Set
from pathlib import Path

PACKAGES = (
    "sitecustomize usercustomize ckptcheck ckptcheck_worker worker_pool pip venv setuptools numpy torch transformers vllm sglang "
    "ray megatron mbridge trl triton compressed_tensors accelerate tokenizers safetensors huggingface_hub msgspec yaml jinja2 "
    "rich typer click markdown_it pygments xxhash blake3 zstandard obstore psutil zmq cloudpickle requests httpx filelock "
    "packaging regex PIL pydantic fastapi uvicorn"
)
CODE = "import sys\nwith open({mark!r}, 'a') as file:\n    print(sys.orig_argv[:6], file=file)\n"


def fill(folder: Path, leave_out: Set[str] = frozenset()) -> Path:
    """Write the files, each of which leaves a mark when it is imported, and return the folder of the marks.

    leave_out: modules that get no file.
    """
    marks = folder / "marks"
    marks.mkdir(parents=True)
    for name in {*sys.stdlib_module_names, *PACKAGES.split()} - leave_out:
        code = CODE.format(mark=str(marks / name))
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    (folder / "ckptcheck.py").unlink(missing_ok=True)
    if "ckptcheck" not in leave_out:
        (folder / "ckptcheck").mkdir()
        (folder / "ckptcheck" / "__init__.py").write_text(CODE.format(mark=str(marks / "ckptcheck")), encoding="utf-8")
    return marks


def read_marks(marks: Path) -> dict[str, str]:
    """Return what was imported from the folder, and by which command; remove the marks."""
    found = {mark.name: mark.read_text(encoding="utf-8") for mark in marks.iterdir()}
    for name in found:
        (marks / name).unlink()
    return found


def list_first_modules() -> frozenset[str]:
    """Return what Python imports at its start and for ``-m``, before any code of ours can run."""
    program = "import runpy, importlib.util, sys; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return frozenset({name.partition(".")[0] for name in listed.split()} | {"sitecustomize", "usercustomize"})
