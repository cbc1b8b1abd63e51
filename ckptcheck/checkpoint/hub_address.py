"""Reads the address of a model's page, as a browser has it, as ``hf://org/name@revision``."""

from __future__ import annotations

import os
import re

from ckptcheck.errors import CkptcheckError

HUB = "hf://"
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
"""Hosts of the Hub. HF_ENDPOINT may name another."""
NOT_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "blog", "api", "organizations", "posts")
"""First words of addresses on the Hub that lead to something other than a model."""
PAGES = ("tree", "blob", "resolve", "raw", "commit", "commits", "blame", "edit")
"""Pages of a model whose next word is a revision. On other pages (discussions, settings) the rest of the address is dropped."""
FOLDER_PAGES = ("tree", "blob", "resolve", "raw", "blame", "edit")
"""Pages whose words after the revision are a path in the repository."""


def normalize_hub_address(target: str) -> str:
    """Return ``hf://org/name@revision`` for the address of a model or of one of its files; any other target unchanged.

    Raises CkptcheckError for an address on the Hub that is not a model's, and for a folder inside a repository.

    >>> normalize_hub_address("https://huggingface.co/org/name/blob/main/model.safetensors")
    'hf://org/name@main'
    >>> normalize_hub_address("hf.co/org/name/"), normalize_hub_address("hf://org/name/"), normalize_hub_address("./model/")
    ('hf://org/name', 'hf://org/name', './model/')
    """
    if target.startswith(HUB):
        return HUB + target.removeprefix(HUB).strip().strip("/")
    if (path := _find_path(target.strip())) is None:
        return target
    from urllib.parse import unquote

    words = [unquote(word) for word in path.split("/") if word]
    if words[:1] == ["models"]:
        words = words[1:]
    if not words or words[0] in NOT_MODELS:
        raise CkptcheckError(f"{target} is no model's address", hint="name a model of the Hub: hf://org/name@revision")
    # a few old models have no organization: huggingface.co/gpt2/tree/main
    length = 1 if len(words) == 1 or words[1] in PAGES else 2
    name, page, revision, inner = (
        "/".join(words[:length]),
        words[length : length + 1],
        words[length + 1 :][:1],
        words[length + 2 :],
    )
    if not page or page[0] not in PAGES or not revision:
        return HUB + name
    address = f"{HUB}{name}@{revision[0]}"
    is_folder = page[0] == "tree"
    if page[0] in FOLDER_PAGES and len(inner) > (0 if is_folder else 1):
        folder = "/".join(inner if is_folder else inner[:-1])
        raise CkptcheckError(
            f"{target} is in the folder {folder} of a repository, and only the top of one can be read",
            hint=f"ckptcheck scan {address} reads the top; hf download {name} --include '{folder}/*' fetches the folder",
        )
    return address


def shown_endpoint() -> str:
    """Return the Hub's address as reports have it: without a password and a query, which HF_ENDPOINT may have."""
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or f"https://{HOSTS[0]}"
    return re.sub(r"(?s)//.*@", "//", re.sub(r"(?s)[?#].*", "", address))


def _find_path(target: str) -> str | None:
    """Return the path of an address on the Hub, without its query; None if the target is not on the Hub."""
    if "/" not in target or target.startswith((".", "/")):
        return None
    from urllib.parse import urlsplit

    scheme, separator, _ = target.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        return None
    try:
        parts = urlsplit(target if separator else f"https://{target}")
        endpoint = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    except ValueError:
        return None
    is_hub = parts.netloc.lower() in HOSTS or (bool(separator) and parts.netloc == endpoint.netloc != "")
    # a folder may be called hf.co: without a scheme it is an address only where there is no such path
    if not is_hub or (not separator and (os.path.exists(target) or not re.search("/.", target))):
        return None
    return parts.path
