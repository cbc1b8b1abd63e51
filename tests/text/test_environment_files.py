"""Files that the environment names, and that libraries read whole: a pipe hung, and /dev/zero took all memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.signatures.keys import SigningKey, TrustedSigner
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.environment_files import VARIABLES
from tests.limited_child import run_limited

KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a sparse file": lambda path: (path.touch(), os.truncate(path, 40 << 30)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_file_without_an_end_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = importlib.import_module("huggingface_hub.constants")
    path = tmp_path / "token"
    KINDS[kind](path)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    def say() -> str:
        with pytest.raises(CkptcheckError) as caught:
            open_checkpoint("hf://acme/tiny")
        return caught.value.message

    outcome = run_limited(say)
    assert not outcome.fault, outcome
    assert outcome.answer.startswith(f"the token file is {path}, which ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VARIABLES)
def test_files_of_credentials_and_certificates_are_regular_ones(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    KINDS[kind](path)
    monkeypatch.setenv(name, str(path))
    config = object()
    for use in (
        lambda: open_checkpoint("s3://bucket/model"),
        lambda: SigningKey(keyless=True).configure(config),
        lambda: TrustedSigner(identity="me@example.org").configure(config),
    ):
        with pytest.raises(CkptcheckError, match=rf"^{name} is {path}, which (is no regular file|has 42\.9 GB)"):
            use()


def test_what_is_absent_or_devnull_is_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptcheck.text.environment_files import require_plain_files

    for path in (str(tmp_path / "absent"), os.devnull, str(tmp_path), ""):
        monkeypatch.setenv("AWS_CONFIG_FILE", path)
        require_plain_files({"the token file": path})
