"""The answer of a dry load, which distinguishes a refusal from a module that this environment lacks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

from .outside_files import OutsideRead

MOST_NAMES = 10_000
"""Names of one kind to send back: the message shows only a few, but a file may have millions."""
MOST_TEXT = 400
"""Characters of a refusal to send back: an error of a loader may repeat a whole config."""
ENVIRONMENT = re.compile(
    r"cuda|gpu|triton|xpu|failed to find a kernel|failed to be inspected|no \S+ moe backend|compute capability|pip install"
    r"|current platform|allocate memory|out of memory|not supported (?:on|by|for) (?:the )?(?:current|this|cpu)"
    r"|trust_remote_code|custom code"
    r"|can't load [\w ]*(?:processor|extractor|tokenizer)|backend tokenizer|failed to load the processor"
    r"|--\w[\w-]{0,80} can only be set with --",
    re.IGNORECASE,
)
"""Patterns of errors for which the checkpoint is not to blame: a device, a package, the checkpoint's own code or its
tokenizer is missing (neither is copied), or the engine's own options contradict each other."""
PYDANTIC = re.compile(r"^\d+ validation errors? for \w+ (?:Value error, )?| \[type=\w+, input_value=.*")
"""The text that pydantic puts before the reason of a class, and after it."""


def describe_load(
    model: str,
    *,
    unfilled: Iterable[str] = (),
    partly: Iterable[tuple[str, int, int]] = (),
    misshapen: Iterable[tuple[str, list[int], list[int]]] = (),
    left_out: Iterable[str] = (),
    at_zero: Iterable[str] = (),
    parameters: int = 0,
) -> dict[str, Any]:
    """Return the answer for a complete load.

    Args:
        model: the class that was built.
        unfilled: parameters that no stored tensor fills.
        partly: parameters that the load fills in part: their names, the written elements, and all.
        misshapen: parameters with the stored shape and their own.
        left_out: stored tensors that the model has no place for.
        at_zero: parameters that keep zeros in every layer, because no stored tensor fills them further.
        parameters: how many the model has.
    """
    found: dict[str, list[Any]] = {
        "unfilled": sorted(unfilled),
        "partly": sorted(partly),
        "misshapen": sorted(misshapen),
        "left_out": sorted(left_out),
        "at_zero": sorted(at_zero),
    }
    counts = {f"{name}_count": len(values) for name, values in found.items()}
    return {"model": model, "parameters": parameters, **counts, **{k: v[:MOST_NAMES] for k, v in found.items()}}


def describe_failure(error: BaseException, model: str = "", last_read: str = "") -> dict[str, Any]:
    """Return the answer for a failed load: `refused`, or `unasked` if the environment is to blame; `broke_off` without memory.

    model: the class that was built; "" before that. last_read: the tensor that the loader was busy with; "" for none.
    """
    causes = list(_list_causes(error))
    for each in causes:
        if isinstance(each, OutsideRead):
            return {"model": model, "unasked": f"it would open {each.filename}, which is no part of the checkpoint"}
    reason = PYDANTIC.sub("", " ".join(str(error).split()))
    text = f"{type(error).__name__}: {reason or _find_line(error)}"
    text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
    if last_read:
        text = f"{text.removesuffix('.')}. The last tensor that it read is {last_read}"
    if any(isinstance(each, MemoryError) for each in causes):
        return {"model": model, "unasked": text, "broke_off": True}
    lacks = any(isinstance(each, ImportError) or ENVIRONMENT.search(str(each)) for each in causes)
    return {"model": model, "unasked" if lacks else "refused": text}


def _find_line(error: BaseException) -> str:
    """Return the file and the line that raised an exception without a reason, which is an assertion; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}: {frames[-1].line}" if frames else ""


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    seen = 0
    cause: BaseException | None = error
    while cause is not None and seen < 20:
        yield cause
        cause, seen = cause.__cause__ or cause.__context__, seen + 1


def stub_torchvision() -> None:
    """Let models of images import torchvision even if it is missing: they call nothing of it before an image comes."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for name in (
        "",
        ".io",
        ".ops",
        ".transforms",
        ".transforms.functional",
        ".transforms.v2",
        ".transforms.v2.functional",
    ):
        module = f"torchvision{name}"
        sys.modules[module] = MagicMock(__spec__=ModuleSpec(module, None), __path__=[], __version__="0")


def limit_memory(spare: int) -> None:
    """Let this process take no more than `spare` bytes of memory beyond what it has; a config may ask for a million layers."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # -1 stands for no limit
        resource.setrlimit(resource.RLIMIT_DATA, (min(taken + spare, soft % (1 << 64), hard % (1 << 64)), hard))
