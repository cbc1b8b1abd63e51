"""``ckptcheck doctor``: what is installed, what works, and why the rest does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

CORE = (
    "safetensors", "msgspec", "numpy", "huggingface-hub", "tokenizers", "jinja2", "pyyaml", "xxhash", "rich", "typer",
)  # fmt: skip
OPTIONAL = {
    "torch": "builds the example checkpoints; a scan never needs it",
    "transformers": "builds the example checkpoints; a scan never needs it",
}


def doctor() -> None:
    """Say what is installed, which optional parts work, and why not."""
    from ckptcheck import __version__, pack, settings

    write = sys.stdout.write
    write(
        f"ckptcheck {__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}\n\n"
    )
    write("What a scan needs\n")
    for name in CORE:
        version = _version(name)
        write(_line(version is not None, f"{name} {version}" if version else f"{name} is missing: pip install {name}"))
    write("\nOptional\n")
    for name, use in OPTIONAL.items():
        version = _version(name) if importlib.util.find_spec(name) else None
        write(_line(version is not None, f"{name} {version}" if version else f"{name} is not installed: {use}"))
    write(_compiled())
    write("\nEngines and trainers\n")
    for line in _engines():
        write(line)
    write("\nHub\n")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    write(_line(True, f"endpoint {endpoint}"))
    token = _has_token()
    write(
        _line(token, "a token is set" if token else "no token: public repositories only (hf auth login, or HF_TOKEN)")
    )
    write("\nRules\n")
    found = settings.find(Path.cwd())
    loaded = pack.load(found.rule_folders)
    write(_line(True, f"{len(loaded)} rules from {pack.builtin_folder()}"))
    for folder in found.rule_folders:
        write(_line(True, f"further rules from {folder}"))
    write(
        _line(
            found.file is not None,
            f"settings from {found.file}" if found.file else "no ckptcheck.toml: the defaults apply",
        )
    )


def _compiled() -> str:
    """Say whether values are looked at by compiled code or by numpy."""
    from ckptcheck.values.glance import is_compiled

    if is_compiled():
        return _line(True, "the look at values is compiled")
    return _line(
        False, "the look at values is not compiled, numpy does it, slower: install ckptcheck again where there is a cc"
    )


def _engines() -> Iterator[str]:
    """Say which environments are ready, and what to do about the others."""
    from ckptcheck.environments import recipe as recipes
    from ckptcheck.environments.home import look

    states = {
        "missing": "is not installed",
        "stale": "was built from an older recipe",
        "broken": "is only half built, or its Python is gone",
    }
    for environment in map(look, recipes.builtin()):
        name, built = environment.recipe.name, environment.built
        if environment.state == "ready" and built is not None:
            versions = ", ".join(f"{package} {version}" for package, version in list(built.versions.items())[:3])
            yield _line(True, f"{name}: {versions} on Python {built.python}")
        else:
            yield _line(False, f"{name} {states[environment.state]}: ckptcheck engine install {name}")


def _line(good: bool, text: str) -> str:
    return f"  {'✓' if good else '–'} {text}\n"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
