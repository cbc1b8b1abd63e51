"""Addresses of the Hub's pages, as they are copied from a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.checkpoint.hub_address import normalize_hub_address, shown_endpoint
from ckptcheck.errors import CkptcheckError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("https://huggingface.co/org/name", "hf://org/name"),
        ("https://huggingface.co/org/name/", "hf://org/name"),
        ("http://www.huggingface.co/org/name?library=transformers#usage", "hf://org/name"),
        ("HTTPS://HuggingFace.co/org/Name", "hf://org/Name"),
        ("https://hf.co/org/name/tree/main", "hf://org/name@main"),
        ("huggingface.co/org/name/tree/v1.0/", "hf://org/name@v1.0"),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F1", "hf://org/name@refs/pr/1"),
        ("https://huggingface.co/org/name/blob/main/config.json", "hf://org/name@main"),
        ("https://huggingface.co/org/name/resolve/abc123/model.safetensors?download=true", "hf://org/name@abc123"),
        ("https://huggingface.co/org/name/commit/abc123", "hf://org/name@abc123"),
        ("https://huggingface.co/org/name/commits/main", "hf://org/name@main"),
        ("https://huggingface.co/org/name/discussions/3", "hf://org/name"),
        ("https://huggingface.co/gpt2", "hf://gpt2"),
        ("https://huggingface.co/gpt2/tree/main", "hf://gpt2@main"),
        ("hf://org/name/", "hf://org/name"),
        ("hf://org/name@v1", "hf://org/name@v1"),
        ("https://mirror.example:8080/org/name/tree/main", "hf://org/name@main"),
        ("org/name", "org/name"),
        ("./model/", "./model/"),
        ("", ""),
        ("https://elsewhere.example/org/name", "https://elsewhere.example/org/name"),
        ("s3://huggingface.co/org/name", "s3://huggingface.co/org/name"),
        ("https://[broken", "https://[broken"),
        ("huggingface.co", "huggingface.co"),
    ],
)
def test_what_an_address_means(written: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8080")
    assert normalize_hub_address(written) == meant


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("", "https://huggingface.co"),
        ("https://mirror.example:8080/hf/", "https://mirror.example:8080/hf"),
        ("https://user:secret@mirror.example/?key=secret", "https://mirror.example/"),
        ("http://user:se/cr@et@mirror.example#secret", "http://mirror.example"),
    ],
)
def test_no_report_has_the_password_of_an_endpoint(endpoint: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert shown_endpoint() == shown


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("https://huggingface.co/datasets/org/name", "is no model's address"),
        ("https://huggingface.co/spaces/org/name", "is no model's address"),
        ("https://huggingface.co/", "is no model's address"),
        ("https://huggingface.co/org/name/tree/main/original", "is in the folder original of a repository"),
        ("https://huggingface.co/org/name/blob/main/a/b/c.safetensors", "is in the folder a/b of a repository"),
    ],
)
def test_what_cannot_be_scanned(written: str, words: str) -> None:
    with pytest.raises(CkptcheckError, match=words):
        normalize_hub_address(written)


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hf.co/org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert normalize_hub_address("hf.co/org/name") == "hf.co/org/name"
