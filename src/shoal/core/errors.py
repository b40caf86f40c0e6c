"""Every error that somebody catches by name.

ShoalError
├── InvalidMove          a state machine was asked for an impossible move: a bug of ours
├── BadInput             the user's flag, file or value is wrong; the message says which and what is wanted
├── Refused              the other side does not want us: token, version, fenced; final
├── ProtocolError        bytes that are not a message of ours, or one too many
├── Disconnected         the connection ended; a new one may work
├── PlatformUnavailable  the platform did not do it this time; a retry may
├── Outdated             the object has changed since we read it: read again, decide again
├── NameTaken            an object of that name is there and belongs to somebody else; it is left alone
├── Denied               the platform refuses: a quota, a permission, a namespace that is being deleted
├── StateUnavailable     the job's state could not be written or read this time; a retry may work
├── StateUnreadable      the job's state is there and not for this release to read: damaged, newer, or not ours
├── StateTaken           somebody who is alive owns the state: one job, one master
└── Superseded           a master with a higher term owns the job now; this one must end
"""


class ShoalError(Exception):
    """The root of our errors. Its text is fit for the user."""


class InvalidMove(ShoalError):
    """A state machine was asked for a move that its table does not have."""


class BadInput(ShoalError):
    """A value from the user is wrong: what, which object, wanted, got."""


class Refused(ShoalError):
    """The other side refused us for good; trying again with the same words cannot help."""


class ProtocolError(ShoalError):
    """The other side sent something that is not a message, is too large, or comes out of turn."""


class Disconnected(ShoalError):
    """The connection ended."""


class PlatformUnavailable(ShoalError):
    """The platform could not carry out a call now."""


class Outdated(ShoalError):
    """Somebody changed the object since it was read; what was decided on the strength of it is void."""


class NameTaken(ShoalError):
    """An object of the wanted name exists and is not ours."""


class Denied(ShoalError):
    """The platform understood and refused. `reason` is one word for it; the text has the platform's own."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StateUnavailable(ShoalError):
    """A state store could not do it now: the disk is full, a service does not answer."""


class StateTooLarge(StateUnavailable):
    """A state store has no room for so much, and will not have."""


class StateUnreadable(ShoalError):
    """What is stored is no state that this release can read. Nothing of it was touched."""


class StateTaken(ShoalError):
    """Another process holds the state."""


class Superseded(ShoalError):
    """There is a newer master: whatever this one would write or say is void."""
