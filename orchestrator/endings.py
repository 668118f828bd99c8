"""The ways in which a command ends without its result, besides a bug of ours."""


class BadInput(Exception):
    """What the user gave cannot be used: one clear line, exit code 2."""


class ClaimNotReached(RuntimeError):
    """--require asked for more than the evidence carries; exit code 1."""


class NothingFound(RuntimeError):
    """A search ended without one usable result; exit code 1."""


class StageFailed(RuntimeError):
    """The actors of a study could not be brought up; exit code 1."""
