"""The sweep in this process, one setting after the other: what Ray Tune has to equal to the bit."""

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.figures import Bench, from_json
from orchestrator.sweep.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every worker is given once."""

    study: StudyConfig
    space: SpaceConfig
    bench: Bench


def play_here(progress: Progress, *, plan: Plan, say: Callable[[str], None]) -> None:
    """Play until nothing is left."""
    while (tried := progress.next()) is not None:
        setting = tried.setting
        assert setting.study is not None
        for blocks in progress.todo(tried):
            rows = plan.bench.batch(setting.study, setting=setting.setting, blocks=blocks)
            if not progress.add(setting.setting, [from_json(r) for r in rows]):
                break
        say(tried.line())
