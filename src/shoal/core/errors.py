"""Every error that somebody catches by name.

ShoalError
├── InvalidMove          a state machine was asked for an impossible move: a bug of ours
├── BadInput             the user's flag, file or value is wrong; the message says which and what is wanted
├── Refused              the other side does not want us: token, version, fenced; final
├── ProtocolError        bytes that are not a message of ours, or one too many
├── Disconnected         the connection ended; a new one may work
└── PlatformUnavailable  the platform did not do it this time; a retry may
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
