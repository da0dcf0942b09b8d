"""Who may ask: keys, and the names under which a server that only this machine can reach may be called."""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers

from executor.base.environment import API_KEY
from executor.base.environment_values import is_key
from executor.serve.errors import ApiError
from ptxgen.errors import ArgumentError
from ptxgen.files import read_text

MOST_BYTES: Final = 1 << 16
"""Of a file of keys."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")

_log = logging.getLogger(__name__)


class AccessRules:
    """keys: any of them opens the server; none: it is open. host: the address that it is bound to; if only this machine can
    reach that, requests must name it by an address or name of this machine, for a page from elsewhere may have had its own name
    lead here."""

    def __init__(self, keys: Collection[str], host: str) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._hosts = {host, *_LOCAL} if is_loopback(host) else None

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return not self._digests

    def require_host(self, headers: Headers) -> None:
        """ApiError 403 for a name that is none of this machine's."""
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            raise ApiError(
                f"the Host header must name this machine; allowed: {', '.join(sorted(self._hosts))}",
                status=403,
                code="bad_host",
            )

    def require_key(self, headers: Headers) -> None:
        """ApiError 401 without one of the keys. Every key is compared, each in a time that does not depend on where it
        differs."""
        if self.is_open:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = sha256(given.strip().encode()).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        if scheme.lower() != "bearer" or not found:
            raise ApiError(
                "the API key is missing or wrong; send it as the header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def keys_of(path: Path | None, environment: str | None) -> list[str]:
    """The keys of a file, a line each, else the one of the environment, else none. ArgumentError for an empty file and for what
    no header can hold; it shows no key."""
    if path is None:
        return [] if environment is None else [_checked(environment, f"environment variable {API_KEY.name}")]
    keys = [line.strip() for line in read_text(path, MOST_BYTES).splitlines() if line.strip()]
    if not keys:
        raise ArgumentError(f"{path} has no key; allowed: one or more, a line each")
    if path.stat().st_mode & 0o077:
        _log.warning("%s can be read by other users of this machine; chmod 600 keeps the keys from them", path)
    return [_checked(key, f"key {number} of {path}") for number, key in enumerate(keys, 1)]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked(key: str, name: str) -> str:
    if not is_key(key):
        raise ArgumentError(f"{name} has a character that it may not have; allowed: {API_KEY.allowed}")
    return key


def _name(host: str) -> str:
    """Of a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
