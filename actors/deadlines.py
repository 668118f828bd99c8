"""Every wait of a merge and of what surrounds it, with its limit and why it is that long.

A wait that reaches its limit drops an island, fails a round or ends a run, by name; none hangs.
Limits that a study sets (merge.timeout_s, elastic.grace_s) stand in its config.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A limit in seconds and its reason."""

    limit_s: float
    why: str


ANSWER = Deadline(
    limit_s=60.0,
    why="a method that only reads or sets: milliseconds, but the actor's process may be paging in",
)
START = Deadline(limit_s=180.0, why="an actor's process imports torch on a loaded machine")
JOIN = Deadline(
    limit_s=60.0, why="islands meet over TCP: as long as the slowest takes to be told, plus retries"
)
RESTART = Deadline(
    limit_s=180.0, why="Ray starts a lost island's process anew, which imports torch and reads text"
)
TOKENIZE = Deadline(
    limit_s=43_200.0, why="another process tokenizes the text: 100 GB at the 3 MB/s of a few cores"
)
STEPS = Deadline(
    limit_s=3600.0,
    why="no island finishes the steps of a tick: nothing to compare with, so only the absurd",
)
STATE = Deadline(
    limit_s=600.0, why="global parameters of an island go to another through the object store"
)
CHECKPOINT = Deadline(limit_s=600.0, why="a full checkpoint to slow shared storage, with fsync")
CHECKPOINT_GRACE = Deadline(
    limit_s=60.0, why="an elastic run: one island writes what is global too, and disks are uneven"
)
VALIDATION = Deadline(limit_s=3600.0, why="the held-out text once through the model, on a CPU")

ALL = {
    "answer": ANSWER,
    "start": START,
    "join": JOIN,
    "restart": RESTART,
    "tokenize": TOKENIZE,
    "steps": STEPS,
    "state": STATE,
    "checkpoint": CHECKPOINT,
    "checkpoint_grace": CHECKPOINT_GRACE,
    "validation": VALIDATION,
}
