"""The few lines of a dead server's log that say what was wrong, out of usage texts and tracebacks.

The first error is most often the cause; the later ones say that something had gone wrong.
"""

import re
from collections.abc import Sequence
from pathlib import Path

FROM_LOG = "from its log "
MOST_LINES = 8
MOST_ERRORS = 5
MOST_CHARS = 300
# What vLLM puts before each line: (EngineCore pid=1) ERROR 11-29 17:00:00 [core.py:700]
_PREFIX = re.compile(r"^(\([^)]*\)\s?)?([A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\]\s?)?")
_ERROR = re.compile(r"\b\w*(Error|Exception|error):|\b[Rr]oot cause")
_FRAME = re.compile(r'^\s+File ".*", line \d+')
_CHAINED = ("Traceback (most recent call last)", "The above exception was", "During handling of")


def telling_lines(lines: Sequence[str]) -> list[str]:
    """At most 8 lines: those that name an error, in their order, then the last other ones."""
    plain = _without_noise(lines)
    errors = list(dict.fromkeys(line for line in plain if names_error(line)))
    if len(errors) > MOST_ERRORS:
        errors = [*errors[: MOST_ERRORS - 1], errors[-1]]
    rest = [line for line in plain if not names_error(line)]
    room = MOST_LINES - len(errors)
    shown = [*errors, *rest[len(rest) - min(room, len(rest)) :]]
    return [line if len(line) <= MOST_CHARS else line[:MOST_CHARS] + " ..." for line in shown]


def from_log(path: Path, lines: Sequence[str]) -> str:
    """The log's name and its telling lines, to follow what is wrong."""
    shown = "\n  ".join(telling_lines(lines) or ["(nothing was written)"])
    return f"{FROM_LOG}{path}:\n  {shown}"


def in_one_line(problem: str) -> str:
    """What is wrong, with no more of `from_log` than its first error and the log's name."""
    head, found, log = problem.partition(f"; {FROM_LOG}")
    head = " ".join(head.split())
    if not found:
        return head
    first, *lines = log.splitlines()
    path = Path(first.rstrip(":"))
    error = next((line.strip() for line in lines if names_error(line)), None)
    said = f"; {error}" if error else ""
    return f"{head}{said} (its log: {path.parent.name}/{path.name})"


def names_error(line: str) -> bool:
    return _ERROR.search(line) is not None


def _without_noise(lines: Sequence[str]) -> list[str]:
    """Without argparse's usage, frames of tracebacks, their source lines, and empty lines."""
    kept = []
    in_usage = in_frames = False
    for raw in lines:
        line = _PREFIX.sub("", raw, count=1).rstrip()
        indented = line.startswith((" ", "\t"))
        in_usage = line.startswith("usage:") or (in_usage and indented)
        in_frames = bool(_FRAME.match(line)) or (in_frames and (indented or not line))
        noise = in_usage or in_frames or not line.strip() or line.startswith(_CHAINED)
        if not noise:
            kept.append(line.strip())
    return kept
