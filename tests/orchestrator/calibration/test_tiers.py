"""Tiers 1 to 3 of live studies: a calibrated replay that foresees the effect, on a real server."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.calibration.effects import SeedEffects, seed_effects
from orchestrator.calibration.evidence import Evidence, gather
from orchestrator.calibration.gate import judge
from orchestrator.calibration.held_out import disjoint_from_tuning
from orchestrator.calibration.prediction import (
    Predicted,
    Prediction,
    Standing,
    replay_condition,
)
from orchestrator.calibration.verdict import Condition, Status, Verdict, VerdictKind
from orchestrator.config import StudyConfig, TunedOn
from orchestrator.metrics import run_metrics
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import run_key
from orchestrator.replay.predict import predict
from tests.replayed import ENGINE, PLANT, answered, fitted_plant

Made = tuple[StudyConfig, list[RunRecord]]
Effects = tuple[SeedEffects, ...]
Measured = tuple[StudyConfig, list[RunRecord], list[RunMetrics]]


def _real(made: Made) -> Measured:
    """As if a real server had answered."""
    study, records = made
    facts = {"engine": "vllm", "engine_version": "0.1"}
    real = [replace(r, provenance={**r.provenance, **facts}) for r in records]
    return study, real, [run_metrics(r) for r in real]


@pytest.fixture(scope="module")
def real(make_records: Callable[..., Made]) -> Measured:
    """Seven seeds, an effect, a policy that dodges: all conditions met but the replay."""
    return _real(make_records(seeds=list(range(7)), aa=True))


@pytest.fixture(scope="module")
def effects(real: Measured) -> tuple[SeedEffects, ...]:
    return seed_effects(gather(*real), "wa_ewma")


def _foreseen(
    effects: Sequence[SeedEffects],
    *,
    off: float = 0.02,
    status: Status = Status.MET,
    leave_out: tuple[int, ...] = (),
) -> Prediction:
    """A replay whose effect ratio is ``off`` in every seed."""
    return Prediction(
        standing=Standing(status=status, why="as it stands", threshold="aims", n=3),
        aim=0.15,
        least_seeds=5,
        policies={
            "wa_ewma": Predicted(
                effects={
                    e.seed: None if e.whole.value is None else e.whole.value * (1 + off)
                    for e in effects
                    if e.seed not in leave_out
                },
                fitted_seeds=leave_out,
                gain=0.5,
            )
        },
        words=("plant: made up",),
    )


def _verdict(measured: Measured, prediction: Prediction | None, **changes: Any) -> Verdict:
    study, records, metrics = measured
    return judge(
        study.model_copy(update=changes), records, metrics, prediction=prediction
    ).verdicts[0]


def _replay(verdict: Verdict) -> Condition:
    return next(c for c in verdict.conditions if c.name == "replay")


@pytest.mark.slow
def test_a_foreseen_effect_on_a_real_server_passes_at_tier_2(
    real: Measured, effects: Effects
) -> None:
    study, records, metrics = real
    judgement = judge(study, records, metrics, prediction=_foreseen(effects))
    verdict = judgement.verdicts[0]
    assert (verdict.verdict, verdict.tier, verdict.held_out) == (VerdictKind.PASS, 2, None)
    assert verdict.sentence is not None
    assert verdict.sentence.startswith("wa_ewma reduces SLO violations against matched random")
    assert "(+2.0 %); gain predicted 50 %" in _replay(verdict).why
    transfer = next(c for c in verdict.conditions if c.name == "effect_transfer")
    assert "replay 4.1 (+2.0 %)" in transfer.why
    assert "plant: made up" in judgement.caveats
    assert not any("replay: absent" in c for c in judgement.caveats)


@pytest.mark.parametrize(
    ("prediction", "status", "why"),
    [
        ({"off": 0.2}, Status.NOT_MET, "does not foresee this study's effect"),
        ({"off": -0.16}, Status.NOT_MET, "(-16.0 %)"),
        ({"status": Status.NOT_MET}, Status.NOT_MET, "as it stands"),
        ({"status": Status.ABSENT}, Status.ABSENT, "as it stands"),
        ({"leave_out": tuple(range(7))}, Status.NOT_ASSESSABLE, "took part in the fit"),
        (
            {"leave_out": (0, 1, 2)},
            Status.NOT_ASSESSABLE,
            "4 seeds of this study outside the fit, too few to carry anything (5 needed)",
        ),
    ],
)
def test_a_replay_that_does_not_hold_does_not_meet_the_condition(
    effects: Effects, prediction: dict[str, Any], status: Status, why: str
) -> None:
    found = replay_condition(_foreseen(effects, **prediction), "wa_ewma", effects)
    assert found.status is status
    assert why in found.why


def test_a_replay_that_does_not_hold_leaves_no_tier(real: Measured, effects: Effects) -> None:
    verdict = _verdict(real, _foreseen(effects, off=0.2))
    assert (verdict.verdict, verdict.tier) == (VerdictKind.INCONCLUSIVE, None)
    assert verdict.sentence is None
    assert verdict.reason.startswith("every condition on live runs is met, but replay: it does not")


def test_an_effect_that_is_unknown_in_a_seed_is_not_foreseen(effects: Effects) -> None:
    lacking = replace(effects[0], whole=replace(effects[0].whole, value=None))
    found = replay_condition(_foreseen(effects), "wa_ewma", (lacking, *effects[1:]))
    assert found.status is Status.NOT_ASSESSABLE
    other = replay_condition(_foreseen(effects), "stopping", effects)
    assert other.status is Status.NOT_ASSESSABLE


def test_seeds_of_the_fit_are_left_out_and_said_so(effects: Effects) -> None:
    found = replay_condition(_foreseen(effects, leave_out=(0, 1)), "wa_ewma", effects)
    assert (found.status, found.n) == (Status.MET, 5)
    assert "without the 2 seeds of the fit" in found.why


def test_a_real_effect_without_skill_reaches_tier_1(make_records: Callable[..., Made]) -> None:
    chance = _real(make_records(seeds=list(range(7)), placement="random"))
    verdict = _verdict(chance, _foreseen(seed_effects(gather(*chance), "wa_ewma")))
    assert verdict.verdict is not VerdictKind.PASS
    assert (verdict.tier, verdict.sentence) == (1, None)


def test_no_simulated_server_goes_above_tier_0(real: Measured, effects: Effects) -> None:
    study, records, metrics = real
    facts = {"engine": "mock", "engine_version": "mock-1"}
    mock = (
        study,
        [replace(r, provenance={**r.provenance, **facts}) for r in records],
        [replace(m, engine="mock", engine_version="mock-1") for m in metrics],
    )
    verdict = _verdict(mock, _foreseen(effects))
    assert (verdict.verdict, verdict.tier) == (VerdictKind.INCONCLUSIVE, 0)
    assert "not on a real server" in verdict.reason


# Held out


def _tuned(measured: Measured, tuned: TunedOn, *, told_before: bool = True) -> Measured:
    study, records, metrics = measured
    said = study.model_copy(update={"tuned_on": tuned})
    if not told_before:
        return said, records, metrics
    config = {"study": said.model_dump(mode="json")}
    return said, [replace(r, config={**r.config, **config}) for r in records], metrics


def test_seeds_apart_from_those_of_the_tuning_reach_tier_3(
    real: Measured, effects: Effects
) -> None:
    held_out = _tuned(real, TunedOn(seeds=(100, 101)))
    verdict = _verdict(held_out, _foreseen(effects))
    assert (verdict.verdict, verdict.tier, verdict.held_out) == (VerdictKind.PASS, 3, True)
    assert verdict.sentence is not None
    assert "carries over" in verdict.sentence


@pytest.mark.parametrize(
    ("tuned", "told_before", "held_out"),
    [(TunedOn(seeds=(5, 100)), True, False), (TunedOn(seeds=(100,)), False, None)],
)
def test_shared_seeds_or_a_later_word_stay_at_tier_2(
    real: Measured, effects: Effects, tuned: TunedOn, told_before: bool, held_out: bool | None
) -> None:
    verdict = _verdict(_tuned(real, tuned, told_before=told_before), _foreseen(effects))
    assert (verdict.verdict, verdict.tier) == (VerdictKind.PASS, 2)
    assert verdict.held_out is held_out


def test_nothing_stated_of_the_tuning_is_unknown(make_study: Callable[..., StudyConfig]) -> None:
    study = make_study()
    assert disjoint_from_tuning(study) is None
    tuned = study.model_copy(update={"tuned_on": TunedOn(seeds=(7,), traces=("a.csv",))})
    assert disjoint_from_tuning(tuned) is True
    with pytest.raises(ValueError, match="at least 1 item"):
        TunedOn(seeds=())


# The prediction itself


@pytest.fixture(scope="module")
def from_plant(make_records: Callable[..., Made]) -> Measured:
    """Runs whose every answer is the plant's own, on the server that it was fitted to."""
    study, records = make_records(
        seeds=[0, 1, 2],
        aa=True,
        gate={"min_seeds_for_interval": 3},
        sidecars={"count": 1, "engine": ENGINE},
    )
    return _real((study, [answered(r, plant=PLANT) for r in records]))


def test_a_plant_foresees_its_own_answers_exactly(from_plant: Measured) -> None:
    study, records, metrics = from_plant
    prediction = predict(study, records, metrics, fitted_plant())
    measured = seed_effects(gather(study, records, metrics), "wa_ewma")
    assert prediction.policies is not None
    mine = prediction.policies["wa_ewma"]
    assert set(mine.effects) == {0, 1, 2}
    for e in measured:
        assert mine.effects[e.seed] == pytest.approx(e.whole.value, rel=1e-12)
    assert all(ratio is not None and ratio > 1.5 for ratio in mine.effects.values())
    gain = _verdict(from_plant, None).relative_gain
    assert mine.gain == pytest.approx(gain, rel=1e-12)
    assert prediction.standing.status is Status.MET
    found = _replay(_verdict(from_plant, prediction))
    assert (found.status, found.n) == (Status.MET, 3)
    assert "(+0.0 %)" in found.why


def test_the_noise_of_a_plant_is_averaged(from_plant: Measured) -> None:
    """One draw of three windows may lie far off: the prediction is not to."""
    study, records, metrics = from_plant
    noisy = PLANT.model_copy(update={"merge_factor_log_sd": 0.4})
    prediction = predict(study, records, metrics, fitted_plant(plant=noisy))
    assert prediction.policies is not None
    ratios = prediction.policies["wa_ewma"].effects.values()
    alone = [e.whole.value for e in seed_effects(_answers(records, noisy, study), "wa_ewma")]
    assert all(r is not None for r in ratios)
    assert list(ratios) != alone


def _answers(records: list[RunRecord], plant: PlantConfig, study: StudyConfig) -> Evidence:
    made = [answered(r, plant=plant) for r in records]
    return gather(study, made, [run_metrics(r) for r in made])


def test_runs_that_the_fit_saw_are_not_predicted(from_plant: Measured) -> None:
    study, records, metrics = from_plant
    seen = next(r for r in records if r.seed == 1 and r.arm.label == "no_sync-end")
    prediction = predict(study, records, metrics, fitted_plant(runs=(run_key(seen),)))
    assert prediction.policies is not None
    mine = prediction.policies["wa_ewma"]
    assert (set(mine.effects), mine.fitted_seeds) == ({0, 2}, (1,))


def test_a_plant_of_another_engine_does_not_stand_for_this_one(from_plant: Measured) -> None:
    prediction = predict(*from_plant, fitted_plant(version="0.2"))
    assert prediction.standing.status is Status.NOT_MET
    assert "fitted to vllm 0.2, the study ran on vllm 0.1" in prediction.standing.why


def test_a_plant_of_other_windows_does_not_stand_for_a_live_study(from_plant: Measured) -> None:
    prediction = predict(*from_plant, fitted_plant(window_s=8.0))
    found = _replay(_verdict(from_plant, prediction))
    assert found.status is Status.NOT_MET
    assert "fitted on windows of 8 s, this study's are 4 s" in found.why
    assert "windows of 8 s" in prediction.words[0]


def test_replayed_run_folders_have_nothing_to_foresee(from_plant: Measured) -> None:
    study, records, _ = from_plant
    facts = {"source": "replay", "engine": "model", "engine_version": "plant-1"}
    made = [replace(r, provenance={**r.provenance, **facts}) for r in records]
    metrics = [run_metrics(r) for r in made]
    prediction = predict(study, made, metrics, fitted_plant())
    assert prediction.policies is None
    found = _replay(_verdict((study, made, metrics), prediction))
    assert found.status is Status.MET
