"""One text of a source, and where it stands: what every reader yields."""

from typing import NamedTuple


class Document(NamedTuple):
    """``where`` names file and line or row, for messages."""

    text: str
    where: str
