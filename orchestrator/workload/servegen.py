"""Requests drawn from ServeGen client data: rate windows (CSV) and token histograms (JSON).

Each window of the CSV (no header: start_s, rate_per_s, cv, family, shape, scale) gives
round(rate * length) gaps from its family, scaled to fill the window: its shape and scale do not
always give the rate that it lists, so the rate is kept. Tokens come from the 6 h segment that holds
the window, prompt and output independently.
Y. Xiang et al., arXiv:2505.09999 (2025); the format as its repository has it.
"""

import ast
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.record_files import each_key_once
from orchestrator.workload.blocks import Block, blocks
from orchestrator.workload.config import ReadOptions
from orchestrator.workload.fields import MOST_TOKENS, NUMBERS, Ints, form_of, time_ns
from orchestrator.workload.rows import Batch
from policies.streams import stream

COLUMNS = ("start_s", "rate_per_s", "cv", "family", "shape", "scale")
FAMILIES = ("Gamma", "Weibull")
MOST_REQUESTS = 10_000_000
_INPUTS = ("input_tokens", "text_tokens")
_DRAWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Requests of one stretch of time; ``shape`` None when there are none."""

    line: int
    start_ns: int
    rate_per_s: float
    family: str
    shape: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Token counts and the cumulative probability up to each."""

    tokens: Ints
    cumulative: npt.NDArray[np.float64]

    def draw(self, size: int, rng: np.random.Generator) -> Ints:
        places = np.searchsorted(self.cumulative, rng.random(size), side="right")
        drawn: Ints = self.tokens[np.minimum(places, len(self.tokens) - 1)]
        return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    start_ns: int
    prompt: Histogram | None  # None: no request in this segment
    output: Histogram | None


def is_windows(line: str) -> bool:
    """Whether a first line is a ServeGen window: six fields, the fourth a family or empty."""
    cells = line.strip().split(",")
    if len(cells) != len(COLUMNS) or cells[3] not in (*FAMILIES, ""):
        return False
    try:
        return all(math.isfinite(float(cell)) for cell in cells[:2])
    except ValueError:
        return False


def servegen_batches(
    path: Path, file: Iterable[Block], *, options: ReadOptions, notes: list[str]
) -> Iterator[Batch]:
    """The drawn requests, a window at a time; each window has its own stream of chance."""
    windows, length_ns = _windows(path, file)
    picked = _picked(path, windows, length_ns=length_ns, options=options, notes=notes)
    dataset = dataset_path(path, options)
    segments = _segments(dataset)
    for window in picked:
        size = round(window.rate_per_s * length_ns / 1e9)
        if not size:
            continue
        segment = max(
            (s for s in segments if s.start_ns <= window.start_ns),
            key=lambda s: s.start_ns,
            default=None,
        )
        if segment is None or segment.prompt is None or segment.output is None:
            raise ValueError(
                f"{path}: line {window.line}: has requests at {window.start_ns / 1e9:g} s, for "
                f"which {dataset} has no tokens; give the dataset that belongs to it"
            )
        rng = stream(options.generate_seed, "servegen", window.start_ns // 10**9)
        yield Batch(
            at_ns=window.start_ns + _arrivals_ns(path, window, size, length_ns=length_ns, rng=rng),
            prompt_tokens=segment.prompt.draw(size, rng),
            output_tokens=segment.output.draw(size, rng),
            lines=[window.line] * size,
        )


def _arrivals_ns(
    path: Path, window: Window, size: int, *, length_ns: int, rng: np.random.Generator
) -> Ints:
    """Times in [0, length): gaps round a circle of that length, cut open inside one of them."""
    assert window.shape is not None
    for _ in range(_DRAWS):
        gaps = (
            rng.gamma(window.shape, size=size)
            if window.family == "Gamma"
            else rng.weibull(window.shape, size=size)
        )
        total = float(gaps.sum())
        if 0 < total < math.inf:
            ends = np.cumsum(gaps) - rng.random() * gaps[0]
            at_ns: Ints = np.floor(ends / total * length_ns).astype(np.int64)
            return np.minimum(at_ns, length_ns - 1)
    raise ValueError(
        f"{path}: line {window.line}, column shape: {window.shape:g} gives no gap above 0 in "
        f"{_DRAWS} draws; correct or delete the line"
    )


def _picked(
    path: Path, windows: list[Window], *, length_ns: int, options: ReadOptions, notes: list[str]
) -> list[Window]:
    """The windows asked for; those beyond MOST_REQUESTS are left out, and that is said."""
    low_ns = options.generate_from_s * 1e9
    high_ns = math.inf if options.generate_for_s is None else low_ns + options.generate_for_s * 1e9
    asked = [w for w in windows if low_ns <= w.start_ns < high_ns]
    if not any(w.rate_per_s > 0 for w in asked):
        raise ValueError(
            f"{path}: no window with requests from {options.generate_from_s:g} s on; the file has "
            f"{len(windows)} windows of {length_ns / 1e9:g} s from {windows[0].start_ns / 1e9:g} s"
        )
    total, picked = 0, []
    for window in asked:
        total += round(window.rate_per_s * length_ns / 1e9)
        if total > MOST_REQUESTS:
            notes.append(
                f"{path}: only windows before {window.start_ns / 1e9:g} s drawn, all of them have "
                f"more than {MOST_REQUESTS} requests; choose by generate_from_s, generate_for_s"
            )
            break
        picked.append(window)
    return picked


def _windows(path: Path, file: Iterable[Block]) -> tuple[list[Window], int]:
    """All windows and their common length."""
    text = b"".join(block.data for block in file).decode()
    windows = [
        _window(path, line, row.rstrip("\r").split(","))
        for line, row in enumerate(text.split("\n"), start=1)
        if row.strip()
    ]
    if len(windows) < 2:
        raise ValueError(f"{path}: has 1 window; its length is not known below 2")
    length_ns = windows[1].start_ns - windows[0].start_ns
    for before, after in itertools.pairwise(windows):
        if after.start_ns - before.start_ns != length_ns or length_ns <= 0:
            raise ValueError(
                f"{path}: line {after.line}, column start_s: {after.start_ns / 1e9:g} follows "
                f"{before.start_ns / 1e9:g}, windows are {length_ns / 1e9:g} s long; correct it"
            )
    return windows, length_ns


def _window(path: Path, line: int, cells: Sequence[str]) -> Window:
    if len(cells) != len(COLUMNS):
        raise ValueError(
            f"{path}: line {line} has {len(cells)} field(s) {list(cells)!r}, a ServeGen window has "
            f"{', '.join(COLUMNS)}; complete or delete the line"
        )

    def where(column: int) -> str:
        return f"{path}: line {line}, column {COLUMNS[column]}"

    start_ns = time_ns(cells[0], form_of(cells[0], (NUMBERS["s"],), where=where(0)), where=where(0))
    rate = _positive(cells[1], where=where(1), zero=True)
    if not rate:
        return Window(line=line, start_ns=start_ns, rate_per_s=0.0, family="", shape=None)
    if cells[3] not in FAMILIES:
        raise ValueError(f"{where(3)}: {cells[3]!r} is none of {', '.join(FAMILIES)}; correct it")
    _positive(cells[5], where=where(5))
    return Window(
        line=line,
        start_ns=start_ns,
        rate_per_s=rate,
        family=cells[3],
        shape=_positive(cells[4], where=where(4)),
    )


def _positive(cell: str, *, where: str, zero: bool = False) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{where}: {cell!r} is no positive number; correct or delete the line")
    return number


def dataset_path(path: Path, options: ReadOptions) -> Path:
    """The token histograms: as stated, or chunk-N-dataset.json beside chunk-N-trace.csv."""
    if options.dataset is not None:
        return path.parent / options.dataset
    name = path.name.removesuffix(".gz").removesuffix(".csv").removesuffix("-trace")
    return path.with_name(f"{name}-dataset.json")


def _segments(path: Path) -> list[Segment]:
    try:
        text = b"".join(block.data for block in blocks(path)).decode()
    except ValueError as error:
        raise ValueError(f"{error} (the token histograms of the trace: dataset)") from error
    try:
        found = json.loads(text, object_pairs_hook=each_key_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON ({error}); copy the file again") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path}: holds no segments; give ServeGen's dataset of the client")
    return [_segment(path, start, fields) for start, fields in found.items()]


def _segment(path: Path, start: str, fields: Any) -> Segment:
    where = f"{path}: segment {start}"
    at_ns = time_ns(start, form_of(start, (NUMBERS["s"],), where=where), where=where)
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: is {type(fields).__name__}, not a mapping of fields")
    prompt = next((name for name in _INPUTS if name in fields), None)
    if prompt is None or "output_tokens" not in fields:
        raise ValueError(
            f"{where}: found {', '.join(fields)}; needed are output_tokens and one of "
            f"{', '.join(_INPUTS)}"
        )
    return Segment(
        start_ns=at_ns,
        prompt=_histogram(fields[prompt], where=f"{where}, {prompt}"),
        output=_histogram(fields["output_tokens"], where=f"{where}, output_tokens"),
    )


def _histogram(text: Any, *, where: str) -> Histogram | None:
    """A text that holds a dict literal {tokens: probability}; read as a literal, never run."""
    try:
        found = ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{where}: {str(text)[:40]!r} is no {{tokens: probability}} literal")
    if not found:
        return None
    for tokens, share in found.items():
        if type(tokens) is not int or not 0 <= tokens <= MOST_TOKENS:
            raise ValueError(f"{where}: {tokens!r} is no number of tokens in 0..{MOST_TOKENS}")
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ValueError(f"{where}: {share!r} is no probability of {tokens} tokens")
    total = math.fsum(found.values())
    if abs(total - 1) > 0.01:
        raise ValueError(f"{where}: probabilities sum to {total:g}, not 1; copy the file again")
    shares = np.array(list(found.values()), dtype=np.float64)
    return Histogram(
        tokens=np.array(list(found), dtype=np.int64), cumulative=np.cumsum(shares / total)
    )
