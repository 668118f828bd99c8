"""plant.json: a plant, the runs that it was fitted on, its errors there and on runs held out.

Written whole by `lull calibrate`; a file changed afterwards is refused when it is read.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from orchestrator.record_files import parse_json, write_json
from orchestrator.replay.config import PlantConfig
from orchestrator.study import explain
from policies.units import Count, Finite, FrozenModel, PositiveCount, Seconds

# The errors that a transfer may have: relative, or in points of a rate. Figures without one are
# shown and carry no claim.
AIMS: dict[str, float] = {"e2e_p95_s": 0.15, "violation_rate": 0.02, "effect_ratio": 0.15}
POINTS = frozenset({"violation_rate"})  # predicted - measured; all others predicted / measured - 1
LEAST_SEEDS = 5  # for an interval; fewer held-out seeds may lie within the aims by luck
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
M = TypeVar("M", bound=FrozenModel)
Group = Literal["no_sync", "merging", "windows"]


class FigureError(FrozenModel):
    """One figure of some runs: measured on the server, predicted by the plant, and how far off.

    ``group``: no_sync = runs in which nothing merges (placebo too), merging = all others, windows =
    requests scheduled in the windows of matched_random. None where it is unknown, never 0.
    """

    figure: str
    group: Group
    measured: Finite | None
    predicted: Finite | None
    error: Finite | None
    interval: tuple[Finite, Finite] | None  # 95 %, seeds resampled; None under 5 seeds
    seeds: Count  # seeds that it is known in
    aim: Finite | None
    within: bool | None  # |error| <= aim; None without an aim or an error

    @model_validator(mode="after")
    def _follows_from_its_numbers(self) -> "FigureError":
        if self.aim != AIMS.get(self.figure):
            raise ValueError(f"{self.figure}: aim {self.aim} is not {AIMS.get(self.figure)}")
        if self.within != judged(self.error, aim=self.aim):
            raise ValueError(f"{self.figure}: within={self.within} with error {self.error}")
        return self


class SeedErrors(FrozenModel):
    """The same figures of one seed alone."""

    seed: Count
    figures: tuple[FigureError, ...]


class RunKey(FrozenModel):
    """A run folder by name and by the content that entered."""

    name: str
    arm: str
    seed: Count
    request_hash: str
    content_sha256: Digest  # requests with their times and outcomes, windows


class FittedOn(FrozenModel):
    """Where the numbers come from."""

    study: str
    regime: str
    selection: str  # how the runs were chosen, in words that `--fit` takes
    by_hand: bool | None = None  # not the default's choice; None: an older file, unknown
    runs: tuple[RunKey, ...]
    seeds: tuple[Count, ...]
    source: str  # live | replay
    engine: str  # vllm | mock | model
    engine_version: str
    host: dict[str, Any]  # facts of the first run's provenance
    window_s: Seconds
    fill: dict[str, Any]  # the load that filled the windows: another fill is another slow-down
    # None in a file that was written before these were kept: unknown, and never a match.
    server: dict[str, Any] | None = None  # settings of the engine that its speed hangs on
    sidecars: PositiveCount | None = None
    islands: PositiveCount | None = None


class Fit(FrozenModel):
    """How the search ended, and the errors on the very runs that it was done on."""

    objective: Finite  # mean robust loss of log(predicted / measured) of TTFT and E2E
    evaluations: PositiveCount
    starts: PositiveCount
    seed: Count
    requests: PositiveCount
    # What the merge's cost was multiplied by (level.py). None: not levelled, as the runs cannot
    # tell, or the file is of a version that did not.
    merge_level: Finite | None = None
    figures: tuple[FigureError, ...]
    by_seed: tuple[SeedErrors, ...]


class Decisions(FrozenModel):
    """A policy asked again inside the replay: how many of its merges fall on the live tick."""

    arm: str
    seeds: Count
    merges: Count  # live
    same_tick: Count
    within_one_tick: Count


class MachineSpeed(FrozenModel):
    """What a token took where nothing merged: 10th percentile of TPOT in no_sync, so that neither
    the plant nor a queue enters. A machine that changed between the parts shows here.
    """

    fitted_s: Seconds
    held_out_s: Seconds
    by_seed: tuple[tuple[Count, Seconds], ...]  # both parts, in the seeds' order

    @property
    def times(self) -> float:
        """How many times as long a token took in the runs held out."""
        return self.held_out_s / self.fitted_s


class Transfer(FrozenModel):
    """The plant on runs that took no part in the fit, in the windows that were recorded there."""

    runs: tuple[RunKey, ...]
    seeds: tuple[Count, ...]
    figures: tuple[FigureError, ...]
    by_seed: tuple[SeedErrors, ...]
    replayed: tuple[FigureError, ...] = ()  # policies decide in the replay themselves
    decisions: tuple[Decisions, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be looked at, and why
    machine: MachineSpeed | None = None  # unknown: a part without no_sync, or an older file

    def figure(self, name: str, *, group: Group) -> FigureError | None:
        """One of ``figures``, or None."""
        found = [f for f in self.figures if (f.figure, f.group) == (name, group)]
        return found[0] if found else None

    @property
    def within(self) -> bool | None:
        """Every aim met; None when one of them could not be looked at."""
        aimed = [f.within for f in self.figures if f.aim is not None]
        if False in aimed:
            return False
        named = {f.figure for f in self.figures if f.within is not None}
        return None if None in aimed or named < set(AIMS) else True


class Calibration(FrozenModel):
    """plant.json. ``fitted_on`` None: numbers that somebody wrote, not measured."""

    format: Literal["lull-plant-1"] = "lull-plant-1"
    plant: PlantConfig
    fitted_on: FittedOn | None = None
    fit: Fit | None = None
    transfer: Transfer | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Calibration":
        if (self.fitted_on is None) != (self.fit is None):
            raise ValueError("fitted_on and fit belong together; one of them is missing")
        if self.transfer is not None and self.fitted_on is None:
            raise ValueError("transfer stands without fitted_on")
        return self

    @property
    def took_part(self) -> frozenset[str]:
        """Content hashes of the runs that the fit saw."""
        return (
            frozenset(r.content_sha256 for r in self.fitted_on.runs)
            if self.fitted_on
            else frozenset()
        )


def seeds_outside(calibration: Calibration) -> tuple[int, ...]:
    """Seeds of the transfer check of which no run took part in the fit: others test nothing."""
    transfer, fitted = calibration.transfer, calibration.fitted_on
    if transfer is None or fitted is None:
        return ()
    return tuple(s for s in transfer.seeds if s not in fitted.seeds)


def judged(error: float | None, *, aim: float | None) -> bool | None:
    """Whether an error lies within its aim; None when either is unknown."""
    return None if error is None or aim is None else abs(error) <= aim


def of_another_server(calibration: Calibration, *, engine: str, engine_version: str) -> str | None:
    """Why the plant is none of this server; None when it is."""
    fitted = calibration.fitted_on
    if fitted is None:
        return "the plant is not fitted to any run"
    if fitted.engine != "vllm" or fitted.source != "live":
        return (
            f"the plant is fitted to {fitted.source} runs of engine={fitted.engine}, no real server"
        )
    if (fitted.engine, fitted.engine_version) != (engine, engine_version):
        return (
            f"the plant is fitted to {fitted.engine} {fitted.engine_version}, the study ran on "
            f"{engine} {engine_version}"
        )
    return None


def unsettled(calibration: Calibration, *, least_seeds: int = LEAST_SEEDS) -> str | None:
    """What the transfer check lacks to be one, whatever its errors are; None when nothing."""
    transfer = calibration.transfer
    if transfer is None:
        return "the fit was not checked on runs that took no part in it"
    aimed = [f for f in transfer.figures if f.aim is not None]
    known = {f.figure for f in aimed if f.error is not None}
    if not set(AIMS) <= known or any(f.error is None for f in aimed):
        return "the transfer check lacks a figure"
    seeds = min(len(seeds_outside(calibration)), *(f.seeds for f in aimed))
    if seeds < least_seeds or any(f.interval is None for f in aimed):
        return (
            f"the transfer check knows every figure in {seeds} seed{'' if seeds == 1 else 's'} "
            f"outside the fit: too few to carry anything ({least_seeds} needed)"
        )
    return None


def missed(calibration: Calibration) -> str | None:
    """The aims that point errors of the transfer check miss; None when none."""
    transfer = calibration.transfer
    off = [] if transfer is None else [f for f in transfer.figures if f.within is False]
    words = [f"{f.figure} of {f.group} off by {f.error:+.3f} (aim {f.aim})" for f in off]
    return f"the transfer check misses its aim: {', '.join(words)}" if words else None


def write_plant(path: Path, calibration: Calibration) -> None:
    """The whole file or none of it, with the hash that tells an edited one."""
    body = calibration.model_dump(mode="json")
    write_json(path, {**body, "sha256": _digest(body)})


def load_plant(path: Path) -> Calibration:
    """A calibration; a bare PlantConfig is an uncalibrated one. ValueError names file and key."""
    try:
        raw = parse_json(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); give the file that `lull calibrate` wrote"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: is no strict JSON ({error}); calibrate again") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: holds {type(raw).__name__}, not a plant; calibrate again")
    if "plant" not in raw:
        return Calibration(plant=_parsed(path, raw, PlantConfig))
    stated = raw.pop("sha256", None)
    if stated is None and raw.get("fitted_on") is None:
        return _parsed(path, raw, Calibration)
    if stated != _digest(raw):
        raise ValueError(
            f"{path}: sha256={str(stated)[:12]!r} is not that of its content; it was edited after "
            "the fit: calibrate again, or give the plant's numbers alone (an uncalibrated plant)"
        )
    return _parsed(path, raw, Calibration)


def _parsed(path: Path, raw: dict[str, Any], model: type[M]) -> M:
    try:
        return model.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = explain(error, where=str(path), root=model).splitlines()[0]
        raise ValueError(first) from error


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
