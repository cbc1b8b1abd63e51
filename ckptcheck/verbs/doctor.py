"""``ckptcheck doctor``: reports what is installed, what works, and how to get the rest."""

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from ckptcheck.verbs.verb import verb

CORE = (
    "safetensors", "msgspec", "numpy", "huggingface-hub", "tokenizers", "jinja2", "pyyaml", "xxhash", "rich", "click",
)  # fmt: skip
OPTIONAL = {
    "torch": "builds the example checkpoints; a scan never needs it",
    "transformers": "builds the example checkpoints; a scan never needs it",
}


@verb()
def doctor() -> None:
    """Say what is installed, which optional parts work, and how to get those that do not."""
    from ckptcheck import __version__
    from ckptcheck.checkpoint.hub_address import shown_endpoint
    from ckptcheck.checkpoint.sandbox import describe_sandbox
    from ckptcheck.linter import rule_loader, settings
    from ckptcheck.live.runtime.worker.ckptcheck_worker.landlock import describe_landlock

    write = sys.stdout.write
    write(
        f"ckptcheck {__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}\n\n"
    )
    write("What a scan needs\n")
    for name in CORE:
        version = _installed_version(name)
        write(
            _format_line(
                version is not None, f"{name} {version}" if version else f"{name} is missing: pip install {name}"
            )
        )
    write("\nOptional\n")
    for name, use in OPTIONAL.items():
        version = _installed_version(name) if importlib.util.find_spec(name) else None
        write(_format_line(version is not None, f"{name} {version}" if version else f"{name} is not installed: {use}"))
    write(_describe_kernel())
    write(_format_line(*describe_sandbox()))
    write(_format_line(*describe_landlock()))
    write("\nEngines and trainers\n")
    for line in _describe_environments():
        write(line)
    write("\nHub\n")
    problem = _find_endpoint_problem()
    write(_format_line(problem is None, f"endpoint {shown_endpoint()}" + (f": {problem}" if problem else "")))
    token = _has_token()
    write(
        _format_line(
            token, "a token is set" if token else "no token: public repositories only (hf auth login, or HF_TOKEN)"
        )
    )
    write("\nRules\n")
    project_settings = settings.find_settings(Path.cwd())
    rules = rule_loader.load_rules()
    write(_format_line(True, f"{len(rules)} rules from {rule_loader.builtin_rule_folder()}"))
    for folder in project_settings.rule_folders:
        write(_format_line(False, f"rules from {folder}: with --config {project_settings.file}"))
    write(
        _format_line(
            project_settings.file is not None,
            f"settings from {project_settings.file}"
            if project_settings.file
            else "no ckptcheck.toml: the defaults apply",
        )
    )


def _describe_kernel() -> str:
    """Say whether compiled code or numpy scans values."""
    from ckptcheck.values.pattern_max import is_compiled

    if is_compiled():
        return _format_line(True, "values are scanned by compiled code")
    return _format_line(
        False,
        "values are scanned by numpy, which is slower: install ckptcheck again on a machine that has a C compiler (cc)",
    )


def _describe_environments() -> Iterator[str]:
    """Say which environments are ready, and how to get the others."""
    from ckptcheck.live.runtime.environments import recipe as recipes
    from ckptcheck.live.runtime.environments.store import find_environment

    states = {
        "missing": "is not installed",
        "stale": "was built from an older recipe",
        "broken": "is only half built, or its Python is gone",
    }
    for environment in map(find_environment, recipes.builtin_recipes()):
        name, build_info = environment.recipe.name, environment.build_info
        if environment.state == "ready" and build_info is not None:
            versions = ", ".join(f"{package} {version}" for package, version in list(build_info.versions.items())[:3])
            yield _format_line(True, f"{name}: {versions} on Python {build_info.python}")
        else:
            yield _format_line(False, f"{name} {states[environment.state]}: ckptcheck engine install {name}")


def _format_line(is_good: bool, text: str) -> str:
    return f"  {'✓' if is_good else '–'} {text}\n"


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_endpoint_problem() -> str | None:
    """Return why no Hub can be asked under HF_ENDPOINT; None if its form is right."""
    from ckptcheck.checkpoint.hub_requests import RequestError, find_endpoint

    try:
        find_endpoint()
    except RequestError as error:
        return error.text
    return None


def _has_token() -> bool:
    try:
        from huggingface_hub import get_token
    except ValueError:  # it reads HF_ENDPOINT on import, which may have a port that cannot be
        return False
    return get_token() is not None
