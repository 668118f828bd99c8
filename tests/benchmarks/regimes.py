"""A replayed regime: its rows and verdicts as the product wrote them, and the figures of the page.

Nothing is decided here: verdicts are the gate's, expectations those of the regime's README.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.table import NAME, read_rows
from orchestrator.study import load_study
from tests.benchmarks.playing import Share, share

Floats = npt.NDArray[np.float64]
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
REGIMES = ("ordinary", "pressure", "steady", "periodic", "onoff", "azure_code")
ROW = "| expected of each |"


def study_path(regime: str) -> Path:
    return EXPERIMENTS / f"regime_{regime}" / "study.yaml"


def expectations(path: Path) -> dict[str, str]:
    """By judged policy, as the README beside the study at ``path`` says; ValueError without it."""
    readme = path.with_name("README.md")
    lines = [x for x in readme.read_text(encoding="utf-8").splitlines() if x.startswith(ROW)]
    if len(lines) != 1:
        raise ValueError(f"{readme}: {len(lines)} rows begin with {ROW!r}; write one")
    words = [word.strip() for word in lines[0].removeprefix(ROW).strip(" |").split(",")]
    return dict(zip(load_study(path).judge, words, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One replayed study; every figure is [seed], in the order of ``seeds``."""

    name: str
    study: Mapping[str, Any]  # study.json
    plant: Mapping[str, Any]  # plant.json
    seeds: tuple[int, ...]
    by_arm: Mapping[str, tuple[ReplayFigures, ...]]  # label: one row a seed
    verdicts: Mapping[str, Mapping[str, Any]]  # judged policy: the gate's verdict
    caveats: tuple[str, ...]  # the gate's
    expected: Mapping[str, str]

    def column(self, arm: str, figure: str) -> Floats:
        """One figure of an arm; NaN where it is unknown."""
        values = [getattr(row, figure) for row in self.by_arm[arm]]
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    def draws_of(self, policy: str) -> tuple[str, ...]:
        """Labels of the policy's matched_random arms; of the first judged one's where it has none:
        the control is drawn for the budget, which is the same for all.
        """
        found = {
            p: [a for a, r in self.by_arm.items() if r[0].kind == "matched_random" and r[0].of == p]
            for p in (policy, *self.verdicts)
        }
        return tuple(next(labels for labels in found.values() if labels))

    def random(self, policy: str, figure: str) -> Floats:
        """Mean over the policy's draws."""
        return np.mean([self.column(a, figure) for a in self.draws_of(policy)], axis=0)

    def gain(self, policy: str, figure: str = "violations") -> Share:
        """(random - policy) / random, a ratio of means over seeds."""
        random = self.random(policy, figure)
        return share(random - self.column(policy, figure), random)

    def closed(self, policy: str) -> Share:
        """(random - policy) / (random - oracle), of violations."""
        random = self.random(policy, "violations")
        oracle = self.column(self.oracle, "violations")
        return share(random - self.column(policy, "violations"), random - oracle)

    @property
    def oracle(self) -> str:
        return next(a for a, rows in self.by_arm.items() if rows[0].kind == "oracle")

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(a for a, rows in self.by_arm.items() if rows[0].kind == "policy")

    def effect(self) -> Share:
        """p95 of requests in a random window / p95 of the same requests in no_sync, over seeds."""
        draw = self.draws_of(next(iter(self.verdicts)))[0]  # each row holds the seed's pool
        inside, plain = (
            self.column(draw, figure) for figure in ("pooled_p95_s", "pooled_p95_no_sync_s")
        )
        known = np.isfinite(inside) & np.isfinite(plain)
        return share(inside[known], plain[known])


def read_regime(name: str, folder: Path) -> Regime:
    """What a replay left in ``folder``; ValueError where a seed or an arm lacks."""
    rows = [row for group in read_rows(folder / NAME) for row in group]
    seeds = tuple(dict.fromkeys(row.replicate for row in rows))
    by_arm = _by_arm(rows, seeds=seeds, where=folder)
    judgement = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    if tuple(judgement["seeds"]) != seeds:
        raise ValueError(f"{folder}: verdicts.json is of other seeds; run lull gate {folder}")
    return Regime(
        name=name,
        study=json.loads((folder / "study.json").read_text(encoding="utf-8")),
        plant=json.loads((folder / "plant.json").read_text(encoding="utf-8")),
        seeds=seeds,
        by_arm=by_arm,
        verdicts={v["policy"]: v for v in judgement["verdicts"]},
        caveats=tuple(judgement["caveats"]),
        expected=expectations(study_path(name)),
    )


def _by_arm(
    rows: Iterable[ReplayFigures], *, seeds: Sequence[int], where: Path
) -> dict[str, tuple[ReplayFigures, ...]]:
    found: dict[str, list[ReplayFigures]] = {}
    for row in rows:
        found.setdefault(row.arm, []).append(row)
    for arm, own in found.items():
        if tuple(row.replicate for row in own) != tuple(seeds):
            raise ValueError(f"{where}: {arm} has not one row of every seed; replay again")
    return {arm: tuple(own) for arm, own in found.items()}
