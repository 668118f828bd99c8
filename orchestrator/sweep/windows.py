"""Windows of trace files, compared by what was read from them: no copy slips in under another name.

A file is told by its bytes, and a window by its runs of requests: RUN consecutive ones with the
same gaps and tokens. So a packed copy, one in another format, one that was cut or moved in time,
is found. Not found: a copy whose times were scaled or rounded or whose tokens were changed, one
with a request put in or taken out in every run, an overlap of fewer than RUN requests, and
traffic that repeats itself within its own file (such a run tells nothing).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.workload.config import ReadOptions
from orchestrator.workload.drafts import read_source
from policies.streams import stream

RUN = 8  # requests
CHECKED = (
    "no window of a trace file was in both (files told by their bytes), and no run of "
    f"{RUN} requests with the same gaps and tokens"
)
Span = tuple[int, float, float]  # seed, start_s, end_s
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of trace time in a file, told by its content."""

    file_sha256: str
    path: str
    zero_s: float  # the first request, on the file's own clock: what is read may begin later
    start_s: float  # from the first request
    end_s: float
    seed: int
    runs: Hashes  # of the runs that begin in it, ascending; those that are alone in their file

    def overlaps(self, other: "Window") -> bool:
        """The same bytes of a file, at times that overlap."""
        return (
            self.file_sha256 == other.file_sha256
            and self.zero_s + self.start_s < other.zero_s + other.end_s
            and other.zero_s + other.start_s < self.zero_s + self.end_s
        )


def first_overlap(
    tuned: Sequence[Window], judged: Sequence[Window]
) -> tuple[Window, Window, str] | None:
    """The first pair that shares traffic, and the words between them."""
    for b in judged:
        for a in tuned:
            if a.overlaps(b):
                return a, b, "of which"
    runs = np.concatenate([a.runs for a in tuned]) if tuned else np.zeros(0, dtype=np.uint64)
    owners = np.repeat(np.arange(len(tuned)), [len(a.runs) for a in tuned])
    for b in judged:
        shared = owners[np.isin(runs, b.runs)]
        if len(shared):
            a = tuned[int(shared[0])]
            count = len(np.intersect1d(a.runs, b.runs))
            return a, b, f"and {count} runs of {RUN} requests there are equal to those that"
    return None


def windows_of(
    spans: Iterable[Span], *, path: str, options: ReadOptions, study_dir: Path
) -> list[Window]:
    """Windows of one file; ``spans`` count from its first request."""
    file = study_dir / path
    # Times as the file has them: another seed would spread a coarse grid another way.
    trace = read_source(file, options.model_copy(update={"dequantise_seed": None}))
    hashes = run_hashes(trace.at_ns, trace.context_tokens, trace.generated_tokens)
    _, first, count = np.unique(hashes, return_index=True, return_counts=True)
    alone = np.zeros(len(hashes), dtype=bool)
    alone[first[count == 1]] = True
    found, digest = [], _sha256(file, file.stat().st_mtime_ns, file.stat().st_size)
    for seed, start_s, end_s in spans:
        edges = np.searchsorted(trace.at_ns, np.round(np.array([start_s, end_s]) * 1e9))
        mine = slice(int(edges[0]), int(edges[1]))
        found.append(
            Window(
                file_sha256=digest,
                path=path,
                zero_s=0.0 if trace.origin is None else trace.origin.first_ns / 1e9,
                start_s=start_s,
                end_s=end_s,
                seed=seed,
                runs=np.sort(hashes[mine][alone[mine]]),
            )
        )
    return found


def run_hashes(*columns: npt.NDArray[np.int64]) -> Hashes:
    """[n - RUN + 1]: a hash of requests i to i + RUN - 1; ``columns``: time, then tokens.

    Of the gaps, not the times: the file's own zero does not enter.
    """
    size = len(columns[0])
    if size < RUN:
        return np.zeros(0, dtype=np.uint64)
    at, *tokens = (column.astype(np.uint64) for column in columns)
    rng = stream(0, "sweep-run-hash")
    total = np.zeros(size - RUN + 1, dtype=np.uint64)
    for column, values in enumerate((np.diff(at), *tokens)):
        for i in range(RUN - 1 if column == 0 else RUN):
            part = _mixed(values[i : i + len(total)])
            total += part * rng.integers(2**63, dtype=np.uint64) * np.uint64(2) + part
    return total


def _mixed(values: Hashes) -> Hashes:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014, sec. 5): sums of it do not cancel."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=16)
def _sha256(file: Path, _changed_ns: int, _bytes: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
