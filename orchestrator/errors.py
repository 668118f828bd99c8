"""The named failures of the world: one clear line and exit code 1, never a traceback."""

from actors.serving.engine import ServerFailed
from orchestrator.endings import ClaimNotReached, NothingFound, StageFailed
from orchestrator.rundir import RecordFailed
from orchestrator.tracking_runs import TrackingFailed

KNOWN_FAILURES = (
    ClaimNotReached,
    NothingFound,
    StageFailed,
    ServerFailed,
    RecordFailed,
    TrackingFailed,
    TimeoutError,  # a lock that another process holds
)
