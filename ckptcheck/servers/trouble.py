"""What can go wrong with a server: it refuses, it is silent, it is gone, or what it says is no answer."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError


class ServerTrouble(CkptcheckError):
    """A request that came to nothing; one sentence that names the server."""


class Refused(ServerTrouble):
    """It answered with a status that is no success. status: of HTTP; said: the beginning of its words."""

    def __init__(self, message: str, status: int, said: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.status = status
        self.said = said


class Silent(ServerTrouble):
    """It took the request and did not answer whole within the time."""


class Gone(ServerTrouble):
    """Nobody listens there, or the connection was cut."""


class Junk(ServerTrouble):
    """What it answered is no JSON, has not the fields it should have, or is larger than any answer can be."""
