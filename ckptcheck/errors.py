"""The two kinds of trouble. A broken checkpoint is neither: that is a finding."""


class CkptcheckError(Exception):
    """Something the user has to change before anything can be checked; one sentence, exit code 2."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class EvidenceError(CkptcheckError):
    """Evidence that exists but could not be read (permission, I/O, network): the verdict is incomplete."""
