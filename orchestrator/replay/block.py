"""One seed's block in replay: every arm on the same traffic and the same plant."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from orchestrator.arms import expand_arms
from orchestrator.config import MatchedRandomArm, StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.measure import (
    Paired,
    Played,
    make_base,
    paired_inside,
    pooled_figures,
    run_figures,
)
from orchestrator.replay.plant import PlantConfig
from orchestrator.replay.player import Scene, make_scene, play, play_schedule
from policies.config import UniformRandomConfig

POOLED = ("matched_random", "placebo")  # whose windows show what a merge does, or a mere mark
NO_SYNC = ArmSpec(kind="no_sync", label="no_sync", policy=None, of=None, draw=None, position=None)


def replay_seed(
    study: StudyConfig,
    *,
    seed: int,
    plant: PlantConfig,
    study_dir: Path,
    arms: Collection[str] | None = None,
    draws: int | None = None,
) -> list[ReplayFigures]:
    """Figures of the seed's arms, in the study's order.

    ``arms``: labels to replay (None: all of the study); ``draws``: that many matched_random draws
    for each such arm of the study instead of its own number. no_sync is always replayed, for the
    figures against it, and returned only where asked for. ValueError for a label that the study
    does not have, or traffic that it has not for this seed.
    """
    wanted = replayed_arms(with_draws(study, draws), arms)
    scene = make_scene(study, seed=seed, plant=plant, study_dir=study_dir)
    block = Block(scene)
    base = make_base(study, block.played(NO_SYNC), seed=seed, corridor=scene.corridor)
    rows: list[ReplayFigures] = []
    inside: dict[tuple[str, str | None], list[Paired | None]] = {}
    for arm in wanted:
        played = block.played(arm)
        rows.append(run_figures(arm, played, base))
        if arm.kind in POOLED:
            inside.setdefault((arm.kind, arm.of), []).append(paired_inside(played, base))
    no_syncs = sum(arm.kind == "no_sync" for arm in expand_arms(study))
    pooled = {key: pooled_figures(runs, no_syncs=no_syncs) for key, runs in inside.items()}
    return [replace(row, **pooled.get((row.kind, row.of), {})) for row in rows]


def with_draws(study: StudyConfig, draws: int | None) -> StudyConfig:
    """The study with so many draws in each matched_random arm; ValueError for less than 1."""
    if draws is None:
        return study
    if draws < 1:
        raise ValueError(f"draws={draws}; give at least 1")
    arms = tuple(
        arm.model_copy(update={"draws": draws}) if isinstance(arm, MatchedRandomArm) else arm
        for arm in study.arms
    )
    return study.model_copy(update={"arms": arms})


def replayed_arms(study: StudyConfig, labels: Collection[str] | None) -> tuple[ArmSpec, ...]:
    """The arms of these labels, in the study's order; ValueError for an unknown or no label."""
    every = expand_arms(study)
    if labels is None:
        return every
    known = [arm.label for arm in every]
    strange = [label for label in labels if label not in known]
    if strange or not labels:
        shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise ValueError(f"arms: {', '.join(strange) or 'none'} asked for; the study has {shown}")
    return tuple(arm for arm in every if arm.label in labels)


class Block:
    """A seed's runs, each different one played once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._known: dict[str, Played] = {}

    def played(self, arm: ArmSpec) -> Played:
        """no_sync at the start and at the end are one run here, an aa is its policy's run, and a
        placebo that only marks windows is answered like no_sync: there is no chance in between.
        """
        if arm.kind == "no_sync":
            return self._once("no_sync", arm)
        if arm.policy is None:
            return play_schedule(self._scene, arm)
        config = self._scene.study.policies[arm.policy]
        if isinstance(config, UniformRandomConfig):  # drawn for the arm, not for the policy
            return play(self._scene, arm)
        return self._once(f"policy {arm.policy}", arm)

    def _once(self, key: str, arm: ArmSpec) -> Played:
        if key not in self._known:
            by_ticks = arm.policy is not None
            self._known[key] = (play if by_ticks else play_schedule)(self._scene, arm)
        return self._known[key]
