"""HTTP with a server that nobody vouches for: by loopback only, within a time and a size, JSON and nothing else.

`http.client` is used as it is: no proxy is asked (a loopback address is meant literally), no redirect is followed (it could
lead away from this machine), and nothing that arrives is ever unpickled.
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
from ckptcheck.servers.trouble import Gone, Junk, Refused, Silent

LARGEST = 1 << 26
"""Bytes of an answer: the checksums of 200,000 tensors have 20 MB."""
CONNECT = 10.0
"""Seconds until somebody takes the connection."""
ASK = 60.0
"""Seconds until an answer is there, where the caller names no other time."""
WORDS = 200
"""Characters of a refusal that are repeated."""
AS = "write it as http://127.0.0.1:30000"
WHY = {
    HTTPStatus.UNAUTHORIZED: "it wants a key: set CKPTCHECK_API_KEY",
    HTTPStatus.FORBIDDEN: "it wants another key: set CKPTCHECK_API_KEY to that of an administrator",
}

T = TypeVar("T")


class Client:
    """Asks one server. url: ``http://host:port`` with an optional path before every endpoint. key: sent as a bearer token.

    remote: whether the server may be on another machine. Raises CkptcheckError for an address that is none, and for one
    that leads elsewhere without `remote`.
    """

    def __init__(self, url: str, *, remote: bool = False, key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise CkptcheckError(f"{url} is no address: {error}", AS) from None
        slip = url.isdigit() or (
            url.startswith(("http:/", "https:/")) and "://" not in url
        )  # http:/host, or a port alone
        if slip or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise CkptcheckError(f"{url or 'an empty text'} is no address of a server", AS)
        if parts.username or parts.password:
            raise CkptcheckError(
                "an address with a user name or password is not taken", "set CKPTCHECK_API_KEY instead"
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
    def places(self) -> frozenset[tuple[str, int, str]]:
        """Where it leads: machine, port and path; all addresses of this machine count as one. Raises CkptcheckError for none."""
        return frozenset(("" if _here(each) else each, self._port, self._prefix) for each in self._addresses())

    def get(self, path: str, kind: type[T], *, timeout: float = ASK) -> T:
        """Ask for a path and read the answer as a type of msgspec. Raises Refused, Silent, Gone or Junk."""
        return self._read(path, self._ask("GET", path, None, timeout), kind)

    def post(self, path: str, body: Any, kind: type[T], *, timeout: float = ASK) -> T:
        """Send a JSON body and read the answer as a type of msgspec. Raises Refused, Silent, Gone or Junk."""
        return self._read(path, self._ask("POST", path, msgspec.json.encode(body), timeout), kind)

    def send(self, method: str, path: str, *, timeout: float = ASK) -> None:
        """Ask where only success counts, whatever is said. Raises Refused, Silent, Gone or Junk."""
        self._ask(method, path, b"" if method == "POST" else None, timeout)

    def _read(self, path: str, raw: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            start = repr(_words(raw, 40)) if not raw.lstrip().startswith(b"<") else "a web page"
            raise Junk(f"{self.url}{path} answers {start}, which is not what an engine says: {error}") from None

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        """Exchange one request; a clock cuts the line when time is up, however slowly the server still talks."""
        make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        line = make(self._host, self._port, timeout=min(timeout, CONNECT))
        late = threading.Event()
        held: list[socket.socket] = []
        clock = threading.Timer(timeout, _cut, [held, late])
        clock.daemon = True
        try:
            line.connect()
            held.append(line.sock)  # the line itself lets go of it once it has read the headers
            line.sock.settimeout(timeout)
            clock.start()
            self._own(line.sock.getpeername()[0])
            line.request(method, f"{self._prefix}{path}", body, self._headers(body))
            answer = line.getresponse()
            raw = answer.read(LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise Silent(f"{self.url}{path} did not answer within {timeout:g} seconds") from None
            what = getattr(error, "strerror", None) or f"{type(error).__name__} {error}".strip()
            if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
                raise Gone(
                    f"{self.url} speaks no TLS", f"write it as {self.url.replace('https:', 'http:', 1)}"
                ) from None
            raise Gone(f"{self.url} cannot be reached: {what}") from None
        finally:
            clock.cancel()
            line.close()
        if late.is_set():  # a body that only ends with the line looks whole when the line is cut
            raise Silent(f"{self.url}{path} did not answer within {timeout:g} seconds")
        if len(raw) > LARGEST:
            raise Junk(f"{self.url}{path} answers more than {LARGEST:,} bytes; it was not read further")
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            said = _words(raw, WORDS)
            words = f": {said}" if said else ""
            hint = WHY.get(HTTPStatus(answer.status)) if answer.status in list(HTTPStatus) else None
            raise Refused(f"{self.url}{path} refuses with {answer.status}{words}", answer.status, said, hint)
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
            raise CkptcheckError(f"{self.url} leads nowhere: {getattr(error, 'strerror', None) or error}") from None

    def _own(self, peer: str) -> None:
        """Look once more at whom we reached: a name may lead elsewhere the second time it is asked."""
        if not self._remote and not _loopback(peer):
            raise Gone(f"{self.url} is not on this machine any more")


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _here(address: str) -> bool:
    """Whether an address is one of this machine's own: only there can a socket be bound to it."""
    if _loopback(address):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _cut(held: list[socket.socket], late: threading.Event) -> None:
    late.set()
    for each in held:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _words(raw: bytes, most: int) -> str:
    """Return the beginning of what was said, in one line; a web page says nothing."""
    if raw.lstrip()[:1] == b"<":
        return ""
    return " ".join(raw[: 4 * most].decode("utf-8", "replace").split())[:most]
