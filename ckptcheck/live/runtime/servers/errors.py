"""The errors of requests to a server."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError


class ServerError(CkptcheckError):
    """A request failed. The message is one sentence that names the server."""


class Rejected(ServerError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int, error_text: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.status = status
        """The HTTP status."""
        self.body = error_text
        """The beginning of the answer."""


class RequestTimeout(ServerError):
    """The server took the request and did not answer completely in time."""


class Unreachable(ServerError):
    """No program listens at the address, or the connection broke."""


class BadResponse(ServerError):
    """The answer is not JSON, lacks fields, or is larger than any answer can be."""
