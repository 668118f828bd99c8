"""What one setting comes to on one block: its violation rate and those of its K random controls.

The objective is the relative gain over matched random, 1 - sum(policy) / sum(control) over blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.config import MatchedRandomArm, PolicyArm, StudyConfig
from orchestrator.sweep.blocks import Block
from orchestrator.sweep.settings import controls_id

if TYPE_CHECKING:
    from orchestrator.replay.figures import ReplayFigures
    from orchestrator.replay.plant import PlantConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFigures:
    """One line of results.jsonl. Rates are violations over counted requests; None is unknown."""

    setting: str
    seed: int
    load: int
    controls: str  # what the control runs depend on
    violation_rate: float | None
    control_rates: tuple[float | None, ...]  # [K], in order of the draws
    requests_scheduled: int
    merge_count: int
    forced_share: float | None
    e2e_p95_s: float | None
    request_hash: str

    @property
    def block(self) -> Block:
        return Block(seed=self.seed, load=self.load)

    @property
    def control_rate(self) -> float | None:
        """Mean over the draws; None when one of them is unknown."""
        known = [r for r in self.control_rates if r is not None]
        return sum(known) / len(known) if known and len(known) == len(self.control_rates) else None


def from_json(row: Mapping[str, Any]) -> BlockFigures:
    """Inverse of ``asdict`` by way of JSON; ValueError when a field lacks or is unknown."""
    names = {f.name for f in fields(BlockFigures)}
    if set(row) != names:
        raise ValueError(f"fields {sorted(set(row) ^ names)} lack or are unknown")
    return BlockFigures(**{**row, "control_rates": tuple(row["control_rates"])})


def gain(rows: Iterable[BlockFigures]) -> float | None:
    """1 - sum(policy) / sum(control); None when a rate is unknown or the controls never violate."""
    seeds = by_seed(rows)
    if not seeds:
        return None
    control = sum(_mean(draws) for _, draws in seeds.values())
    return 1.0 - sum(rate for rate, _ in seeds.values()) / control if control > 0 else None


def by_seed(rows: Iterable[BlockFigures]) -> dict[int, tuple[float, tuple[float, ...]]] | None:
    """Each seed's rate and its K control rates, means over its loads; None when one is unknown.

    The seed is the unit of replication: its loads share their random numbers.
    """
    groups: dict[int, list[BlockFigures]] = {}
    for row in rows:
        if row.violation_rate is None or row.control_rate is None:
            return None
        groups.setdefault(row.seed, []).append(row)
    return {
        seed: (
            _mean(r.violation_rate for r in found),
            tuple(_mean(draw) for draw in zip(*(r.control_rates for r in found), strict=True)),
        )
        for seed, found in groups.items()
    }


def _mean(values: Iterable[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known)


class Evaluator(Protocol):
    """Plays one block; pickled to the workers."""

    def play(
        self, study: StudyConfig, *, policy: str, seed: int, draws: int
    ) -> "tuple[ReplayFigures, list[ReplayFigures]]":
        """The policy's run and ``draws`` matched_random runs of it (0: none)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplayEvaluator:
    """The replay on a calibrated plant."""

    plant: "PlantConfig"
    study_dir: Path

    def play(
        self, study: StudyConfig, *, policy: str, seed: int, draws: int
    ) -> "tuple[ReplayFigures, list[ReplayFigures]]":
        from orchestrator.replay.block import replay_seed

        arms: list[PolicyArm | MatchedRandomArm] = [PolicyArm(kind="policy", policy=policy)]
        if draws:
            arms.append(MatchedRandomArm(kind="matched_random", of=policy, draws=draws))
        rows = replay_seed(
            study.model_copy(update={"arms": tuple(arms), "judge": (), "seeds": (seed,)}),
            seed=seed,
            plant=self.plant,
            study_dir=self.study_dir,
        )
        return rows[0], rows[1:]


Controls = dict[tuple[str, int, int], tuple[float | None, ...]]  # (controls, seed, load): rates


@dataclass(kw_only=True)
class Bench:
    """What every worker holds: how to play a block, and the controls that are known by now.

    Controls depend on corridor and traffic, not on the policy's numbers, so a worker plays each
    of them once for many settings.
    """

    evaluator: Evaluator
    policy: str
    loads: tuple[Any, ...]
    draws: int
    controls: Controls

    def figures(self, study: StudyConfig, *, setting: str, block: Block) -> BlockFigures:
        study = study.model_copy(update={"load": self.loads[block.load]})
        key = (controls_id(study), block.seed, block.load)
        rates = self.controls.get(key)
        mine, drawn = self.evaluator.play(
            study,
            policy=self.policy,
            seed=block.seed,
            draws=self.draws if rates is None else 0,
        )
        if rates is None:
            rates = tuple(r.violation_rate for r in drawn)
            self.controls[key] = rates
        return BlockFigures(
            setting=setting,
            seed=block.seed,
            load=block.load,
            controls=key[0],
            violation_rate=mine.violation_rate if mine.status == "complete" else None,
            control_rates=rates,
            requests_scheduled=mine.requests_scheduled,
            merge_count=mine.merge_count,
            forced_share=mine.forced_share,
            e2e_p95_s=mine.e2e_p95_s,
            request_hash=mine.request_hash,
        )

    def batch(
        self, study: StudyConfig, *, setting: str, blocks: Sequence[Block]
    ) -> list[dict[str, Any]]:
        """Rows as plain objects, for the way to the driver."""
        return [asdict(self.figures(study, setting=setting, block=b)) for b in blocks]


def known_controls(rows: Iterable[BlockFigures]) -> Controls:
    return {(r.controls, r.seed, r.load): r.control_rates for r in rows}
