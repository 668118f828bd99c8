"""The held-out blocks: the chosen setting, replayed and judged by the gate, once.

results.jsonl and judging.json both say for which setting the blocks were used; for another one
they are spent, also where one of the two was taken away.
"""

from collections.abc import Callable
from pathlib import Path

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import (
    ArmConfig,
    MatchedRandomArm,
    NoSyncArm,
    PolicyArm,
    StudyConfig,
    TunedOn,
)
from orchestrator.record_files import read_json, write_json
from orchestrator.sweep.blocks import loads_of
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.result import Tuned
from orchestrator.workload.config import TraceConfig

FOLDER, MARK = "judging", "judging.json"
JudgeFolder = Callable[[StudyConfig, Path], Judgement]  # replays what is missing, then the gate


def judged_studies(
    study: StudyConfig, space: SpaceConfig, *, chosen: StudyConfig
) -> list[StudyConfig]:
    """One study a load: the chosen setting with the judging seeds, draws and the study's family."""
    arms = _arms(study, space)
    judge = study.judge if space.policy in study.judge else (*study.judge, space.policy)
    return [
        chosen.model_copy(
            update={
                "load": load,
                "arms": arms,
                "judge": judge,
                "seeds": space.judging.seeds.seeds,
                "tuned_on": _tuned_on(study, space),
            }
        )
        for load in loads_of(study, space.judging)
    ]


def _tuned_on(study: StudyConfig, space: SpaceConfig) -> TunedOn:
    """What the gate tells held-out evidence by: seeds, and traces by file name."""
    traces = [x.path for x in loads_of(study, space.tuning) if isinstance(x, TraceConfig)]
    return TunedOn(seeds=space.tuning.seeds.seeds, traces=tuple(dict.fromkeys(traces)))


def _arms(study: StudyConfig, space: SpaceConfig) -> tuple[ArmConfig, ...]:
    """The study's arms, with what the gate needs of the tuned policy, and the draws of judging."""
    own = [a for a in study.arms if not isinstance(a, MatchedRandomArm)]
    named = {a.of for a in study.arms if isinstance(a, MatchedRandomArm)} | {space.policy}
    if not any(isinstance(a, NoSyncArm) for a in own):
        own.append(NoSyncArm(kind="no_sync"))
    if not any(isinstance(a, PolicyArm) and a.policy == space.policy for a in own):
        own.append(PolicyArm(kind="policy", policy=space.policy))
    draws = space.judging.draws
    random = [MatchedRandomArm(kind="matched_random", of=of, draws=draws) for of in sorted(named)]
    return (*own, *random)


def check_unspent(folder: Path, ledger: Ledger, *, setting: str) -> None:
    """ValueError when the judging blocks were looked at for another setting, or for an unknown."""
    mark = folder / MARK
    marked = read_json(mark)["setting"] if mark.exists() else None
    if ledger.judging is None and marked is None and (folder / FOLDER).exists():
        raise ValueError(
            f"{folder}: {FOLDER}/ is there, but neither {MARK} nor {ledger.path.name} says which "
            "setting was judged; restore them, or start again with another --out"
        )
    for used in (ledger.judging, marked):
        if used is None or used == setting:
            continue
        raise ValueError(
            f"{folder}: the judging blocks were used for setting {used}, and the best is now "
            f"{setting}; blocks can be held out once: give other judging.seeds and another --out"
        )


def judge_held_out(
    folder: Path,
    study: StudyConfig,
    space: SpaceConfig,
    *,
    ledger: Ledger,
    chosen: StudyConfig,
    tuned: Tuned,
    judge_folder: JudgeFolder,
) -> list[Judgement]:
    """Marks the blocks as used before the first of them is played."""
    check_unspent(folder, ledger, setting=tuned.setting)
    ledger.begin_judging(tuned.setting, settings_tried=tuned.settings_tried)
    write_json(folder / MARK, {"setting": tuned.setting, "settings_tried": tuned.settings_tried})
    return [
        judge_folder(judged, folder / FOLDER / f"load-{i}")
        for i, judged in enumerate(judged_studies(study, space, chosen=chosen))
    ]
