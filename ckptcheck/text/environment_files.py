"""Refuses files that the environment names and a library would wait for or read without end: pipes, devices, sparse files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.formatting import format_bytes

VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "NETRC", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS", "MSC_CONFIG",
)  # fmt: skip
"""Variables with files of certificates, credentials and settings that the clients of stores and of Sigstore read whole."""
LARGEST = 1 << 24
"""Most bytes of such a file; the certificates of all authorities have 0.3 MB."""


def require_plain_files(others: Mapping[str, str] | None = None) -> None:
    """Raise CkptcheckError for a file of the environment that is no regular one, or too long.

    A file that does not exist is left to the library. others: further files, by the name that a message gives them.
    """
    named = {name: path for name in VARIABLES if (path := os.environ.get(name))}
    for name, path in {**named, **(others or {})}.items():
        try:
            state = os.stat(path)
        except (OSError, ValueError):  # ValueError: a NUL
            continue
        if stat.S_ISDIR(state.st_mode) or os.path.realpath(path) == os.devnull:
            continue
        if not stat.S_ISREG(state.st_mode):
            raise CkptcheckError(f"{name} is {path}, which is no regular file", hint="name a file, or unset it")
        if state.st_size > LARGEST:
            raise CkptcheckError(
                f"{name} is {path}, which has {format_bytes(state.st_size)}, and no such file has that",
                hint="name another file, or unset it",
            )
