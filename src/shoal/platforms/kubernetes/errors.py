"""What an API server may answer instead of what was asked, translated once, by name.

ApiError (a ShoalError)
├── NotFound             the object is not there
├── NotServed            the *kind* is not there: a custom resource definition is missing, or the server is too old
├── AlreadyExists        an object of that name is there already
├── Conflict             the object is another version or uid than we said, or a field has another owner
├── Gone                 that version is compacted away: list again
├── Invalid              the server refuses the object; `causes` name the fields
├── Forbidden            we are known and may not; `permission` names the missing rule
│   ├── QuotaExceeded        a ResourceQuota has no room
│   └── NamespaceEnding      the namespace is being deleted: nothing new in it
├── Unauthorized         the server does not know us: the token expired or is wrong
├── TooManyRequests      the server asks us to wait; it did nothing
├── LeaseLost            not from the server: our own fence, this process no longer leads
└── Unavailable          (also a PlatformUnavailable) no answer, half an answer or a 5xx; a retry may work

`NotServed` is not a `NotFound`: who takes a missing object for a deleted one must not take a missing kind for one.

`Unavailable.outcome_unknown` says that a write may have taken effect all the same: its request was sent, its answer
was lost. Writes are repeatable because objects are named, not numbered; who repeats one must accept `AlreadyExists`.
"""

import re
from dataclasses import dataclass

import msgspec

from shoal.core.errors import PlatformUnavailable, ShoalError


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason the server gives."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[Cause] = []
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """The API server's own words when something failed (or a deletion succeeded at once)."""

    kind: str = "Status"
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What a role must allow for a call: one RBAC rule."""

    verb: str
    group: str
    resource: str
    """`pods`, or `pods/status` for a subresource."""
    namespace: str | None
    """None: cluster-wide."""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "cluster-wide"
        group = f" of {self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group} {where}"


class ApiError(ShoalError):
    """The API server did not do what was asked."""

    def __init__(self, message: str, status: Status | None = None) -> None:
        super().__init__(message)
        self.status = status or Status()


class NotFound(ApiError):
    pass


class NotServed(ApiError):
    pass


class AlreadyExists(ApiError):
    pass


class Conflict(ApiError):
    pass


class Gone(ApiError):
    pass


class Invalid(ApiError):
    @property
    def causes(self) -> tuple[Cause, ...]:
        """The fields the server refuses, and why."""
        return tuple(self.status.details.causes) if self.status.details else ()


class Forbidden(ApiError):
    def __init__(self, message: str, status: Status | None = None, permission: Permission | None = None) -> None:
        super().__init__(message, status)
        self.permission = permission
        """The rule that a role lacks; None when not a role but an admission rule refused."""


class QuotaExceeded(Forbidden):
    pass


class NamespaceEnding(Forbidden):
    pass


class Unauthorized(ApiError):
    pass


class TooManyRequests(ApiError):
    def __init__(self, message: str, status: Status | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after
        """How long the server wants us to wait, in seconds; None: it did not say."""


class LeaseLost(ApiError):
    pass


class Unavailable(ApiError, PlatformUnavailable):
    def __init__(
        self,
        message: str,
        status: Status | None = None,
        *,
        outcome_unknown: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, status)
        self.outcome_unknown = outcome_unknown
        self.retry_after = retry_after


_RBAC = re.compile(r'cannot \S+ resource "|cannot \S+ path "')
_STATUS = msgspec.json.Decoder(Status)


def status_of(code: int, body: bytes) -> Status:
    """What the server said, however it said it: a Status object, or the text of something in between."""
    try:
        status = _STATUS.decode(body)
    except msgspec.MsgspecError:
        text = " ".join(body[:300].decode(errors="replace").split())
        return Status(code=code, message=text or f"HTTP {code}")
    return msgspec.structs.replace(status, code=code)


def error_of(status: Status, *, call: str, permission: Permission, retry_after: float | None = None) -> ApiError:
    """The error for a failed call. `call` says it in words, `permission` is what it needs."""
    text = f"{call}: {status.message or status.reason or f'HTTP {status.code}'}"
    match status.code:
        case 404 if _is_kind_missing(status):
            of = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
            return NotServed(
                f"{call}: the API server does not serve {of}; is its custom resource definition installed?", status
            )
        case 404:
            return NotFound(text, status)
        case 409 if status.reason == "AlreadyExists":
            return AlreadyExists(text, status)
        case 409:
            return Conflict(text, status)
        case 410:
            return Gone(text, status)
        case 422 if any(cause.field == "metadata.uid" for cause in _causes(status)):
            return Conflict(text, status)  # a patch that names a uid: "field is immutable" is what the server calls it
        case 400 | 413 | 415 | 422:
            return Invalid(text, status)
        case 401:
            return Unauthorized(
                f"{call}: the API server does not accept our credentials: they may have expired. Log in again, or see "
                "which user the kubeconfig's context names (`kubectl config view --minify`); in a Pod, see whether its "
                "service account is still there",
                status,
            )
        case 403:
            return _forbidden(status, text, call, permission)
        case 429:
            return TooManyRequests(text, status, retry_after=retry_after)
        case code if code >= 500:
            # Only these two are said before anything is done; behind any other the write may have been made.
            unknown = code not in (501, 503)
            return Unavailable(text, status, outcome_unknown=unknown, retry_after=retry_after)
        case _:
            return ApiError(text, status)


def _causes(status: Status) -> list[Cause]:
    return status.details.causes if status.details else []


def _is_kind_missing(status: Status) -> bool:
    """A 404 that is not about one object: plain text from the router, or a Status without a name."""
    return status.details is None or (not status.details.name and status.reason in ("", "NotFound"))


def _forbidden(status: Status, text: str, call: str, permission: Permission) -> Forbidden:
    if any(cause.reason == "NamespaceTerminating" for cause in _causes(status)):
        return NamespaceEnding(text, status)
    if "exceeded quota" in status.message:
        return QuotaExceeded(text, status)
    if _RBAC.search(status.message):
        user = re.match(r'.*?User "([^"]*)"', status.message)
        who = user[1] if user else "this identity"
        return Forbidden(f"{call}: {who} lacks the permission to {permission}", status, permission)
    return Forbidden(text, status)
