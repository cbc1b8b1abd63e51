"""Sends HTTP requests to an untrusted server: over loopback only, limited in time and size, and in JSON only.

It uses plain `http.client`: no proxy (a loopback address is meant literally), no redirect (it could lead to another machine),
and it unpickles nothing that arrives.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.servers.errors import BadResponse, Rejected, RequestTimeout, Unreachable

LARGEST = 1 << 26
"""Size limit of a response in bytes: the checksums of 200,000 tensors take 20 MB."""
CONNECT = 10.0
"""Seconds to connect."""
ASK = 60.0
"""Default seconds to answer."""
WORDS = 200
"""Characters of an error response that the message repeats."""
AS = "write it as http://127.0.0.1:30000"
WHY = {
    HTTPStatus.UNAUTHORIZED: "it wants a key: set CKPTCHECK_API_KEY",
    HTTPStatus.FORBIDDEN: "it wants another key: set CKPTCHECK_API_KEY to that of an administrator",
}

T = TypeVar("T")


class ServerClient:
    """Sends requests to one server.

    url: ``http://host:port`` with an optional path before every endpoint. key: sent as a bearer token. remote: whether the
    server may be on another machine. Raises CkptcheckError for a malformed address, and without `remote` for one that leads
    to another machine.
    """

    def __init__(self, url: str, *, remote: bool = False, key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise CkptcheckError(f"{url} is no address: {error}", AS) from None
        # a port alone, or http:/host
        is_misspelt = url.isdigit() or (url.startswith(("http:/", "https:/")) and "://" not in url)
        if is_misspelt or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise CkptcheckError(f"{url or 'an empty text'} is no address of a server", AS)
        if parts.username or parts.password:
            raise CkptcheckError(
                "an address with a user name or password is not accepted", "set CKPTCHECK_API_KEY instead"
            )
        if key and not (key.isascii() and key.isprintable()):  # the HTTP client would show it in its error
            raise CkptcheckError(
                "CKPTCHECK_API_KEY has characters that no key has",
                "remove line breaks and other unprintable characters",
            )
        self._tls, self._host = parts.scheme == "https", host
        self._port = port or (443 if self._tls else 80)
        self._prefix, self._remote, self._key = parts.path.rstrip("/"), remote, key
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        if not remote and not all(map(_loopback, self._addresses())):
            raise CkptcheckError(
                f"{self.url} is not on this machine, and only servers here are asked",
                "--allow-remote asks it all the same",
            )

    @cached_property
    def endpoints(self) -> frozenset[tuple[str, int, str]]:
        """The machine, port and path behind each address of the host; all addresses of this machine count as "".

        Raises CkptcheckError if the host has no address.
        """
        return frozenset(("" if _here(address) else address, self._port, self._prefix) for address in self._addresses())

    def get(self, path: str, kind: type[T], *, timeout: float = ASK) -> T:
        """Get a path and decode the response as `kind`, a type that msgspec decodes. Raises ServerError."""
        return self._read(path, self._ask("GET", path, None, timeout), kind)

    def post(self, path: str, body: Any, kind: type[T], *, timeout: float = ASK) -> T:
        """Post a JSON body and decode the response as `kind`, a type that msgspec decodes. Raises ServerError."""
        return self._read(path, self._ask("POST", path, msgspec.json.encode(body), timeout), kind)

    def send(self, method: str, path: str, *, timeout: float = ASK) -> None:
        """Send a request and ignore the content of its response. Raises ServerError without success."""
        self._ask(method, path, b"" if method == "POST" else None, timeout)

    def _read(self, path: str, raw: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            start = repr(_words(raw, 40)) if not raw.lstrip().startswith(b"<") else "a web page"
            raise BadResponse(f"{self.url}{path} answers {start}, which is not what an engine says: {error}") from None

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        """Send one request and return the body of the response.

        A timer cuts the connection when the time is up, even if the server still sends bytes slowly.
        """
        connection_class = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = connection_class(self._host, self._port, timeout=min(timeout, CONNECT))
        timed_out = threading.Event()
        sockets: list[socket.socket] = []
        timer = threading.Timer(timeout, _cut, [sockets, timed_out])
        timer.daemon = True
        try:
            connection.connect()
            # the connection drops its reference to the socket once it has read the headers
            sockets.append(connection.sock)
            connection.sock.settimeout(timeout)
            timer.start()
            self._own(connection.sock.getpeername()[0])
            connection.request(method, f"{self._prefix}{path}", body, self._headers(body))
            response = connection.getresponse()
            raw = response.read(LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:
            if timed_out.is_set() or isinstance(error, TimeoutError):
                raise RequestTimeout(f"{self.url}{path} did not answer within {timeout:g} seconds") from None
            reason = getattr(error, "strerror", None) or f"{type(error).__name__} {error}".strip()
            if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
                raise Unreachable(
                    f"{self.url} speaks no TLS", f"write it as {self.url.replace('https:', 'http:', 1)}"
                ) from None
            raise Unreachable(f"{self.url} cannot be reached: {reason}") from None
        finally:
            timer.cancel()
            connection.close()
        # a body without a length ends with the connection, so it looks complete when the timer cuts that
        if timed_out.is_set():
            raise RequestTimeout(f"{self.url}{path} did not answer within {timeout:g} seconds")
        if len(raw) > LARGEST:
            raise BadResponse(f"{self.url}{path} answers more than {LARGEST:,} bytes; it was not read further")
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            body_start = _words(raw, WORDS)
            detail = f": {body_start}" if body_start else ""
            hint = WHY.get(HTTPStatus(response.status)) if response.status in list(HTTPStatus) else None
            raise Rejected(
                f"{self.url}{path} refuses with {response.status}{detail}", response.status, body_start, hint
            )
        return raw

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _addresses(self) -> list[str]:
        try:
            return [str(info[4][0]) for info in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as error:
            raise CkptcheckError(
                f"the host of {self.url} cannot be resolved: {getattr(error, 'strerror', None) or error}"
            ) from None

    def _own(self, peer: str) -> None:
        """Raise Unreachable if the connection leads to another machine: a name may resolve differently the second time."""
        if not self._remote and not _loopback(peer):
            raise Unreachable(f"{self.url} is not on this machine any more")


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _here(address: str) -> bool:
    """Whether an address belongs to this machine: only then can a socket be bound to it."""
    if _loopback(address):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _cut(sockets: list[socket.socket], timed_out: threading.Event) -> None:
    """Shut the sockets down, and set the event that says so."""
    timed_out.set()
    for connected_socket in sockets:
        with contextlib.suppress(OSError):
            connected_socket.shutdown(socket.SHUT_RDWR)


def _words(raw: bytes, max_chars: int) -> str:
    """Return the beginning of a response in one line, at most `max_chars` characters; "" for a web page."""
    if raw.lstrip()[:1] == b"<":
        return ""
    return " ".join(raw[: 4 * max_chars].decode("utf-8", "replace").split())[:max_chars]
