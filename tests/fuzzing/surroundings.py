"""Doors of what is around a command: the limits of its process, and the folder that it is started in.

Under a limit a command answers as it does without, or says that it could not. From a folder full of modules it answers as it does
from any other, and none of them runs.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
from functools import cache
from pathlib import Path

from tests.fuzz import damaged
from tests.fuzzing.commands import COMMANDS, SLOW, build_inputs, find_wrong, run_command, run_program, summarize
from tests.paths import ROOT

MB = 1 << 20
LIMITS: dict[int, tuple[int, ...]] = {
    resource.RLIMIT_NOFILE: (8, 10, 12, 16, 20, 24, 32, 48, 64),
    resource.RLIMIT_CPU: (1, 2, 3, 20, 60),
    resource.RLIMIT_AS: (16 * MB, 64 * MB, 128 * MB, 256 * MB, 512 * MB, 1000 * MB),
    resource.RLIMIT_DATA: (16 * MB, 64 * MB, 256 * MB, 1000 * MB),
    resource.RLIMIT_FSIZE: (0, 1, 64, 4096, MB),
    resource.RLIMIT_NPROC: (0, 1, 2, 8),
    resource.RLIMIT_STACK: (512 << 10, MB, 4 * MB),
    resource.RLIMIT_CORE: (0,),
}
"""Limit → its values; those of memory are beside what the process holds already."""
ADDED = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
NOBODY = 65534


def check_limits(seed: int, folder: Path) -> None:
    """Run a command under limits on its process, at times on a damaged input. Raises AssertionError."""
    dice = random.Random(seed)
    sound_folder, sound = build_inputs(folder.parent)
    name = dice.choice(sorted(sound))
    if name in SLOW and dice.random() < 0.9:
        return
    words, expected = COMMANDS[name], sound[name].answer
    inputs = Path(shutil.copytree(sound_folder, folder / "inputs"))
    if sound[name].opened and dice.random() < 0.3:
        path = inputs / dice.choice(sorted(sound[name].opened))
        path.write_bytes(damaged(path.read_bytes(), dice))
        copy = Path(shutil.copytree(inputs, folder / "again"))
        expected = run_command(copy, words)
    limits = {kind: dice.choice(LIMITS[kind]) for kind in dice.sample(sorted(LIMITS), dice.choice([1, 1, 1, 2]))}
    answer = run_command(inputs, words, lambda: _limit(limits), seconds=20)
    if resource.RLIMIT_CPU in limits and "SIGXCPU" in answer.fault:
        return  # the limit itself
    wrong = find_wrong(answer, words)
    if not wrong and answer.code in (0, 1) and summarize(answer) != summarize(expected):
        wrong = f"only under them: {sorted(summarize(answer) - summarize(expected))}"
    names = {getattr(resource, kind): kind for kind in dir(resource) if kind.startswith("RLIMIT_")}
    assert not wrong, f"{name}, { {names[kind]: value for kind, value in limits.items()} }: {wrong}"


def _limit(limits: dict[int, int]) -> None:
    if resource.RLIMIT_NPROC in limits:
        _become_nobody()
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, value in limits.items():
        most = value + held * (kind in ADDED)
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _become_nobody() -> None:
    """Let root be counted as any user: it has no limit of processes. It still reads the files of root."""
    import ctypes

    if os.geteuid():
        return
    system, both = ctypes.CDLL(None), 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    system.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setresuid(NOBODY, NOBODY, NOBODY)
    system.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(both, both, both))
    for capability in (1, 2):
        system.prctl(47, 2, capability, 0, 0)  # PR_CAP_AMBIENT_RAISE: programs that are started keep it


TRAP = "open({mark!r}, 'a').write(__name__ + ' ran\\n')\n"
"""A module that leaves a mark. Builtins alone: it may shadow anything."""
OTHERS = (
    "sitecustomize", "usercustomize", "conftest", "numpy", "msgspec", "safetensors", "typer", "click", "rich", "yaml", "filelock",
    "huggingface_hub", "tokenizers", "jinja2", "transformers", "torch", "vllm", "sglang", "ray", "accelerate", "peft", "httpx",
    "requests", "certifi", "xxhash", "zstandard", "cryptography", "model_signing", "antigravity", "ckptcheck_worker",
    "modeling_llama", "pytest", "setuptools", "pip",
)  # fmt: skip
SETTINGS = 'select = ["ST"]\nrules = ["evil"]\n[ignore]\nCFG = "so"\n'
INSIDE = {"scan": 1, "manifest": 1, "identity": 1, "verify": 1, "series": 1}
"""Verb → the place of its target, which may be the working directory itself."""


@cache
def list_modules() -> tuple[str, ...]:
    """Return the names of modules that a started Python might take from its working directory."""
    own = {path.stem for path in (ROOT / "ckptcheck").rglob("*.py")} - {"__init__", "__main__"}
    return tuple(sorted({*sys.stdlib_module_names, *OTHERS, *own, "ckptcheck"} - {*sys.builtin_module_names}))


def set_traps(folder: Path, mark: Path, dice: random.Random) -> None:
    """Fill a folder with modules, packages, settings and start files that leave a mark where they run."""
    trap = TRAP.format(mark=str(mark))
    for name in list_modules():
        if dice.random() < 0.1:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "__init__.py").write_text(trap)
            (folder / name / "__main__.py").write_text(trap)
        elif not (folder / name).exists():
            (folder / f"{name}.py").write_text(trap)
    (folder / "evil").mkdir(exist_ok=True)
    (folder / "evil" / "evil.py").write_text(trap)
    (folder / "evil.pth").write_text(f"import os; {trap}")
    (folder / "pyvenv.cfg").write_text("home = .\n")
    (folder / ".pdbrc").write_text(trap)
    (folder / ".env").write_text(
        "HF_ENDPOINT=http://127.0.0.1:1\nPYTHONSTARTUP=evil/evil.py\nCKPTCHECK_CONFIG=ckptcheck.toml\n"
    )
    for program in ("python", "python3", "git", "nvidia-smi", "cc", "uv"):
        (folder / program).write_text(f"#!/bin/sh\necho {program} ran >> '{mark}'\n")
        (folder / program).chmod(0o755)


def check_folder(seed: int, folder: Path) -> None:
    """Start a command in a folder, or in its target, that holds traps. Raises AssertionError."""
    dice = random.Random(seed)
    sound_folder, sound = build_inputs(folder.parent)
    name = dice.choice(sorted(sound))
    words, expected, mark = COMMANDS[name], sound[name].answer, folder / "mark"
    inputs = Path(shutil.copytree(sound_folder, folder / "inputs"))
    start, place = inputs, INSIDE.get(words[0])
    targets = [inputs / word for word in words if (inputs / word).is_dir()]
    if place and dice.random() < 0.5 and (inputs / words[place]).is_dir():
        start = inputs / words[place]
        words = tuple(f"../{word}" if (inputs / word).exists() else word for word in words)
        words = (*words[:place], ".", *words[place + 1 :])
    is_foreign = dice.random() < 0.5
    for trapped in {start, *(targets if is_foreign else ())}:
        set_traps(trapped, mark, dice)
    for target in targets if is_foreign else ():
        (target / "ckptcheck.toml").write_text(SETTINGS)
        (target / "pyproject.toml").write_text(
            "[tool.ckptcheck]\n" + SETTINGS.replace("[ignore]", "[tool.ckptcheck.ignore]")
        )
    answer = run_program(start, words, folder)
    wrong = find_wrong(answer, words)
    if mark.exists():
        wrong = f"{mark.read_text().splitlines()[:5]}; {answer.errors[-200:]}"
    elif not wrong and start == inputs and not is_foreign and summarize(answer) != summarize(expected):
        wrong = f"only there: {sorted(summarize(answer) - summarize(expected))}: {answer.errors[-300:]}"
    assert not wrong, f"{' '.join(words)}, in {start.name}: {wrong}"
