"""One seed's block in replay: every arm on the same traffic and the same plant."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config import StudyConfig
from orchestrator.replay.figures import ReplayFigures

if TYPE_CHECKING:
    from orchestrator.replay.plant import PlantConfig


def replay_seed(
    study: StudyConfig,
    *,
    seed: int,
    plant: "PlantConfig",
    study_dir: Path,
    arms: Collection[str] | None = None,
    draws: int | None = None,
) -> list[ReplayFigures]:
    """Figures of the seed's arms, in the study's order.

    ``arms``: labels to replay (None: all of the study); ``draws``: that many matched_random draws
    for each such arm of the study instead of its own number. no_sync is always replayed, for the
    figures against it, and returned only where asked for.
    """
    raise NotImplementedError
