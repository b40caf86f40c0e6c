"""Tokens: who may say what to a master.

A token is base64(uid ‖ HMAC-SHA256(install key, uid ‖ purpose)). Whoever holds the install key can make and check
every token of every job (`JobKeys`); a local job makes a random key of its own, and holders of a token learn nothing
of it. A master in a cluster is given the tokens of its one job and no key (`JobTokens`).
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shoal.core.errors import BadInput

_MAC_BYTES = hashlib.sha256().digest_size


class Purpose(StrEnum):
    AGENT = "agent"
    """Be a node of the job."""
    ADMIN = "admin"
    """Look at the job, scale it, stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKeys:
    uid: str
    install_key: bytes = field(repr=False)

    @classmethod
    def new(cls, uid: str) -> "JobKeys":
        return cls(uid=uid, install_key=secrets.token_bytes(32))

    def token(self, purpose: Purpose) -> str:
        uid = self.uid.encode()
        mac = hmac.digest(self.install_key, uid + b"\0" + purpose.encode(), "sha256")
        return base64.urlsafe_b64encode(uid + mac).decode()

    def allows(self, token: str, purpose: Purpose) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(token.encode(), self.token(purpose).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTokens:
    """The tokens of one job, made by whoever holds the install key."""

    tokens: Mapping[Purpose, str] = field(repr=False)

    def allows(self, token: str, purpose: Purpose) -> bool:
        """Compared in constant time. A purpose that no token was given for is open to nobody."""
        known = self.tokens.get(purpose)
        return known is not None and hmac.compare_digest(token.encode(), known.encode())


class TokenCheck(Protocol):
    """Whether a token is this job's, for that purpose: all that a server needs to know."""

    def allows(self, token: str, purpose: Purpose) -> bool: ...


def token_uid(token: str) -> str:
    """The uid of the job that a token is for. Says nothing about whether it is genuine."""
    try:
        raw = base64.b64decode(token.strip(), altchars=b"-_", validate=True)
        return raw[:-_MAC_BYTES].decode()
    except (binascii.Error, ValueError) as exc:
        raise BadInput("that is not a token of Shoal: it should be one line of base64 text") from exc
