"""A calibration finds a known plant again, says what it cannot know, and never flatters itself."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.calibration.effects import seed_effects
from orchestrator.calibration.evidence import gather
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.records import RunRecord
from orchestrator.replay.calibrate import calibrate_runs
from orchestrator.replay.calibrate_words import transfer_lines
from orchestrator.replay.calibrated import Calibration, missed, of_another_server, unsettled
from orchestrator.replay.compare import (
    error_of,
    excess_per_merge_s,
    figure_errors,
    pair_up,
    seed_errors,
)
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.fit import Fitted, fit_plant, loss
from orchestrator.replay.level import MOST, levelled
from orchestrator.replay.machine import machine_speed
from orchestrator.replay.measured import measured_run, run_key
from orchestrator.replay.noise import with_noise
from orchestrator.replay.split import default_selection, split_runs
from tests.orchestrator.replay.plant_world import NOISE, TRUTH, VLLM, plant_records
from tests.synthetic import World, synthetic_study

TWO_ARMS = [{"kind": "no_sync"}, {"kind": "matched_random", "of": "wa_ewma", "draws": 1}]


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    """Two seeds of a plant without noise."""
    return plant_records(TRUTH, seeds=[0, 1], arms=TWO_ARMS, horizon_s=40.0, judge=[])


@pytest.fixture(scope="module")
def made(records: list[RunRecord]) -> Calibration:
    """As after a search that ended at the true plant."""
    with pytest.MonkeyPatch.context() as patch:
        ended = Fitted(plant=TRUTH, objective=0.0, evaluations=1, requests=100, calm=False)
        patch.setattr("orchestrator.replay.calibrate.fit_plant", lambda *_, **__: ended)
        return calibrated(records)


def study_of(record: RunRecord) -> StudyConfig:
    return StudyConfig.model_validate_json(json.dumps(record.config["study"]))


def calibrated(records: list[RunRecord], **options: Any) -> Calibration:
    given = {"selection": None, "seed": 0, "study_dir": Path(), **options}
    return calibrate_runs(study_of(records[0]), records, **given)


def on_seeds(made: Calibration, seeds: int) -> Calibration:
    """The same check as if so many seeds had shown it."""
    assert made.transfer is not None
    figures = tuple(
        f.model_copy(update={"seeds": seeds, "interval": (-0.1, 0.1)})
        for f in made.transfer.figures
    )
    told = {"seeds": tuple(range(1, 1 + seeds)), "figures": figures}
    return made.model_copy(update={"transfer": made.transfer.model_copy(update=told)})


def step_in_window_s(plant: PlantConfig, sequences: int) -> float:
    """What a merge makes of a step; factor and merge_step_s are known only together."""
    step_s = plant.step_base_s + sequences * plant.step_per_seq_s
    return step_s + (plant.merge_factor - 1.0) * (step_s + plant.merge_step_s)


@pytest.mark.slow
def test_a_known_plant_is_found_again_within_6_percent(
    records: list[RunRecord],
) -> None:
    made = calibrated(records)
    for name in ("step_base_s", "step_per_seq_s", "prefill_per_token_s", "overhead_s"):
        assert getattr(made.plant, name) == pytest.approx(getattr(TRUTH, name), rel=0.06), name
    for sequences in (1, 4, 8):
        found, true = (step_in_window_s(p, sequences) for p in (made.plant, TRUTH))
        assert found == pytest.approx(true, rel=0.06)
    assert made.plant.pace_log_sd == pytest.approx(0.0, abs=0.02)
    assert made.plant.merge_factor_log_sd == pytest.approx(0.0, abs=0.05)
    assert made.transfer is not None
    assert made.transfer.within is True


def test_its_errors_on_runs_held_out_are_small_and_every_aim_is_met(made: Calibration) -> None:
    assert made.fitted_on is not None
    assert made.transfer is not None
    assert made.fitted_on.seeds == (0,)
    assert (made.fitted_on.sidecars, made.fitted_on.islands) == (1, 2)
    assert made.fitted_on.server is not None
    assert made.fitted_on.server["decode_step_s"] == 0.004
    assert made.transfer.seeds == (1,)
    assert made.transfer.within is True
    assert {f.figure for f in made.transfer.figures} >= {
        "e2e_p50_s",
        "e2e_p95_s",
        "ttft_p95_s",
        "violation_rate",
        "excess_per_merge_s",
        "effect_ratio",
    }
    e2e = [f for f in made.transfer.figures if f.figure.startswith("e2e")]
    assert len(e2e) == 4
    assert all(f.error is not None and abs(f.error) < 0.05 for f in e2e)
    assert "in 1 seed outside the fit: too few" in str(
        why_not(made, engine="vllm", engine_version="0.32.0")
    )
    assert why_not(on_seeds(made, 5), engine="vllm", engine_version="0.32.0") is None
    assert made.transfer.machine is not None
    assert made.transfer.machine.times == pytest.approx(1.0, rel=0.1)
    assert any(line.startswith("machine: a token took") for line in transfer_lines(made))
    assert transfer_lines(made)[-1].startswith(
        "transfer: point errors within the aims on 1 seed outside the fit (3 runs held out"
    )
    assert "too few to carry anything (5 needed)" in transfer_lines(made)[-1]
    assert "every aim is met" in transfer_lines(on_seeds(made, 5))[-1]
    assert "the study ran on vllm 0.33" in str(why_not(made, engine="vllm", engine_version="0.33"))


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not look at how good the fit is."""
    for name, value in (("STARTS", 1), ("EVALUATIONS", 2), ("POLISH", 10), ("PHASES", 1)):
        monkeypatch.setattr(f"orchestrator.replay.fit.{name}", value)


@pytest.mark.usefixtures("short_search")
def test_the_same_runs_and_seed_give_the_same_plant(records: list[RunRecord]) -> None:
    runs = [measured_run(r) for r in records[:3]]
    first, again = (fit_plant(runs, slots=16, seed=3) for _ in range(2))
    assert first == again


@pytest.mark.slow
def test_with_noise_and_an_arm_missing_the_plant_is_found_within_20_percent() -> None:
    noisy = TRUTH.model_copy(update=NOISE)
    arms = [*TWO_ARMS, {"kind": "policy", "policy": "wa_ewma"}]
    records = plant_records(noisy, seeds=list(range(12)), arms=arms, horizon_s=40.0)
    records = [r for r in records if not (r.arm.kind == "policy" and r.seed == 1)]
    made = calibrated(records, selection="seeds=0-5")
    for name in ("step_base_s", "overhead_s", "prefill_per_token_s"):
        assert getattr(made.plant, name) == pytest.approx(getattr(TRUTH, name), rel=0.2), name
    for sequences in (1, 4):
        found, true = (step_in_window_s(p, sequences) for p in (made.plant, TRUTH))
        assert found == pytest.approx(true, rel=0.12)
    for name, true in NOISE.items():
        assert 0.5 < getattr(made.plant, name) / true < 2.0, name
    assert made.transfer is not None
    assert made.transfer.within is True
    assert all(d.merges > 0 for d in made.transfer.decisions)


@pytest.mark.slow
def test_merges_whose_real_work_slows_nothing_are_told_from_those_that_slow_at_once() -> None:
    study: dict[str, Any] = {"arms": TWO_ARMS, "horizon_s": 40.0, "judge": []}
    real_s = World().real_s
    calm = TRUTH.model_copy(update={"merge_calm_s": real_s})
    found = calibrated(plant_records(calm, seeds=[0, 1], **study))
    assert found.plant.merge_calm_s == pytest.approx(real_s)
    assert found.plant.merge_calm_log_sd == pytest.approx(0.0, abs=1e-6)
    assert found.transfer is not None
    assert found.transfer.within is True
    found = calibrated(plant_records(TRUTH, seeds=[0, 1], **study))
    assert found.plant.merge_calm_s == 0.0


@pytest.mark.parametrize("times", [0.7, 1.3])
def test_a_merge_adds_what_was_measured_once_its_noise_is_known(
    records: list[RunRecord], times: float
) -> None:
    """The runs have no noise: it lifts what a merge adds, the wrong factor lifts or lowers it."""
    factor = 1.0 + (TRUTH.merge_factor - 1.0) * times
    noisy = TRUTH.model_copy(update={"merge_factor": factor, "merge_factor_log_sd": 0.3})
    runs = [measured_run(r) for r in records if r.seed == 0]
    before_s = excess_per_merge_s(pair_up(runs, plant=noisy))
    found = levelled(noisy, runs)
    assert found.by is not None
    assert (found.by < 1.0) == (times > 1.0)
    assert found.plant.merge_factor - 1.0 == pytest.approx((factor - 1.0) * found.by)
    measured_s, expected_s = excess_per_merge_s(pair_up(runs, plant=found.plant))
    assert measured_s is not None
    assert expected_s == pytest.approx(measured_s, rel=0.02)  # requests join whole steps
    assert before_s[1] != pytest.approx(measured_s, rel=0.15)
    assert levelled(TRUTH, runs).by == pytest.approx(1.0, abs=0.01)


def test_what_merges_add_is_not_levelled_where_it_is_unknown(records: list[RunRecord]) -> None:
    runs = [measured_run(r) for r in records]
    apart = [r for r in runs if r.merging == (r.key.seed == 0)]  # no_sync is of another seed
    assert {r.merging for r in apart} == {True, False}
    assert excess_per_merge_s(pair_up(apart, plant=TRUTH)) == (None, None)
    assert (levelled(TRUTH, apart).by, levelled(TRUTH, apart).plant) == (None, TRUTH)
    mine = [r for r in runs if r.key.seed == 0]
    merging = next(r for r in mine if r.merging)
    plain = next(r for r in mine if not r.merging)
    one = replace(merging, measured=plain.measured)  # a merge that added nothing
    assert levelled(TRUTH, [plain, one]).by is None
    weak = TRUTH.model_copy(update={"merge_factor": 1.0 + (TRUTH.merge_factor - 1.0) / (2 * MOST)})
    assert levelled(weak, mine).by == MOST  # further off than a noise can lift


def test_without_a_merge_the_slow_down_is_unknown_and_refused(records: list[RunRecord]) -> None:
    quiet = [r for r in records if r.arm.kind == "no_sync"]
    with pytest.raises(ValueError, match="none of them merged, so merge_factor is unknown"):
        calibrated(quiet)
    merging = [r for r in records if r.arm.kind == "matched_random"]
    with pytest.raises(ValueError, match="the server without merges is unknown"):
        calibrated(merging)
    with pytest.raises(ValueError, match="no complete run"):
        calibrated([replace(r, status="partial", why="killed") for r in records])


def test_too_few_requests_carry_no_fit(records: list[RunRecord]) -> None:
    short = replace(measured_run(records[0]), counted=np.zeros(records[0].requests.num_rows, bool))
    with pytest.raises(ValueError, match="0 answered requests in 1 runs cannot carry a fit"):
        fit_plant([short], slots=16, seed=0)


@pytest.mark.usefixtures("short_search")
def test_a_mock_server_is_named_and_never_stands_for_the_real_one(
    records: list[RunRecord], made: Calibration
) -> None:
    mock = [replace(r, provenance={**VLLM, "engine": "mock"}) for r in records[:3]]
    found = calibrated(mock, selection="seeds=0")
    assert found.fitted_on is not None
    assert found.fitted_on.engine == "mock"
    assert "engine=mock, no real server" in str(why_not(found, engine="mock", engine_version="0"))
    with pytest.raises(ValueError, match="engine is 'mock'"):
        calibrated([*records, mock[0]])
    replayed = made.model_copy(
        update={"fitted_on": made.fitted_on.model_copy(update={"source": "replay"})}  # type: ignore[union-attr]
    )
    assert "no real server" in str(why_not(replayed, engine="vllm", engine_version="0.32.0"))


def test_a_missed_aim_and_a_missing_check_are_reasons(made: Calibration) -> None:
    made = on_seeds(made, 5)
    real = {"engine": "vllm", "engine_version": "0.32.0"}
    assert "not checked" in str(why_not(made.model_copy(update={"transfer": None}), **real))
    assert "not fitted" in str(why_not(Calibration(plant=TRUTH), **real))
    assert made.transfer is not None
    off = made.transfer.figures[1].model_copy(update={"error": 0.4, "within": False})
    missed = made.transfer.model_copy(update={"figures": (*made.transfer.figures, off)})
    assert "off by +0.400 (aim 0.15)" in str(
        why_not(made.model_copy(update={"transfer": missed}), **real)
    )
    some = tuple(f for f in made.transfer.figures if f.figure != "effect_ratio")
    lacking = made.transfer.model_copy(update={"figures": some})
    assert lacking.within is None
    assert "lacks a figure" in str(why_not(made.model_copy(update={"transfer": lacking}), **real))


def test_other_arms_of_the_seeds_that_were_fitted_are_no_seeds_held_out(made: Calibration) -> None:
    many = on_seeds(made, 5)
    assert many.fitted_on is not None
    all_fitted = many.fitted_on.model_copy(update={"seeds": tuple(range(6))})
    found = many.model_copy(update={"fitted_on": all_fitted})
    assert "in 0 seeds outside the fit: too few" in str(
        why_not(found, engine="vllm", engine_version="0.32.0")
    )
    assert "on 0 seeds outside the fit" in transfer_lines(found)[-1]


def test_measured_figures_are_those_of_metrics_and_gate(records: list[RunRecord]) -> None:
    pairs = pair_up([measured_run(r) for r in records if r.seed == 0], plant=TRUTH, draws=1)
    found = {(f.figure, f.group): f for f in figure_errors(pairs, resample_seed=0)}
    merging = next(r for r in records if r.seed == 0 and r.arm.kind == "matched_random")
    figures = run_metrics(merging)
    assert found["e2e_p95_s", "merging"].measured == figures.e2e_p95_s
    assert found["violation_rate", "merging"].measured == figures.violation_rate
    study = study_of(merging)
    evidence = gather(study, records, [run_metrics(r) for r in records])
    (effects, _) = seed_effects(evidence, "wa_ewma")
    assert found["effect_ratio", "windows"].measured == effects.whole.value
    assert all(f.error == pytest.approx(0.0, abs=1e-9) for f in found.values() if f.measured)


def test_five_seeds_give_an_interval_and_fewer_none(records: list[RunRecord]) -> None:
    slow = TRUTH.model_copy(update={"step_base_s": 0.0026})
    runs = [measured_run(r) for r in records]
    many = [
        replace(r, key=r.key.model_copy(update={"seed": seed}))
        for seed in range(5)
        for r in runs
        if r.key.seed == seed % 2
    ]
    few = figure_errors(pair_up(runs, plant=slow, draws=1), resample_seed=0)
    assert {f.interval for f in few} == {None}
    found = figure_errors(pair_up(many, plant=slow, draws=1), resample_seed=0)
    p95 = next(f for f in found if (f.figure, f.group) == ("e2e_p95_s", "no_sync"))
    assert p95.interval is not None
    assert p95.error is not None
    assert 0.0 < p95.interval[0] <= p95.error <= p95.interval[1]
    assert p95.seeds == 5
    assert len(seed_errors(pair_up(many, plant=slow, draws=1))) == 5


def test_an_error_is_relative_or_in_points_and_unknown_where_a_side_is() -> None:
    assert error_of("e2e_p95_s", 2.0, 2.2) == pytest.approx(0.1)
    assert error_of("violation_rate", 0.10, 0.13) == pytest.approx(0.03)
    assert error_of("e2e_p95_s", None, 1.0) is None
    assert error_of("excess_per_merge_s", -1.0, 1.0) is None


@pytest.mark.parametrize(
    ("selection", "seeds", "arms"),
    [
        ("seeds=1", {1}, 3),
        ("seeds=0-1 arms=no_sync-end,matched*", {0, 1}, 2),
        ("arms=*", {0, 1}, 3),
    ],
)
def test_a_selection_is_by_seeds_and_arms(
    records: list[RunRecord], selection: str, seeds: set[int], arms: int
) -> None:
    split = split_runs([measured_run(r) for r in records], selection=selection)
    assert {r.key.seed for r in split.fit} == seeds
    assert len({r.key.arm for r in split.fit}) == arms
    assert len(split.fit) + len(split.held_out) == len(records)
    assert split.words == selection


@pytest.mark.parametrize("selection", ["seed=1", "seeds=", "seeds=a", "0-3", "seeds=1-"])
def test_what_is_no_selection_is_refused(records: list[RunRecord], selection: str) -> None:
    with pytest.raises(ValueError, match="--fit"):
        split_runs([measured_run(r) for r in records[:3]], selection=selection)


@pytest.mark.parametrize(
    ("seeds", "fitted"),
    [(2, "0"), (5, "0,2"), (6, "0"), (7, "0,3"), (10, "0,2,4,6,8"), (11, "0,2,4,6,8")],
)
def test_the_default_holds_out_five_seeds_where_there_are_so_many(
    records: list[RunRecord], seeds: int, fitted: str
) -> None:
    run = measured_run(records[0])
    many = [replace(run, key=run.key.model_copy(update={"seed": s})) for s in range(seeds)]
    assert default_selection(many) == f"seeds={fitted}"


def test_a_machine_that_slowed_down_is_told_apart_from_a_wrong_plant(
    records: list[RunRecord],
) -> None:
    runs = [measured_run(r) for r in records]
    fitted = [r for r in runs if r.key.seed == 0]
    slow = [
        replace(
            r,
            measured=replace(
                r.measured, ttft_s=r.measured.ttft_s * 1.5, e2e_s=r.measured.e2e_s * 1.5
            ),
        )
        for r in fitted
    ]
    later = [replace(r, key=r.key.model_copy(update={"seed": 1})) for r in slow]
    speed = machine_speed(fitted, later)
    assert speed is not None
    assert speed.times == pytest.approx(1.5)
    assert dict(speed.by_seed)[1] == pytest.approx(1.5 * dict(speed.by_seed)[0])
    assert machine_speed(fitted, [r for r in later if r.merging]) is None


def test_of_a_single_seed_one_arm_of_each_kind_is_fitted(records: list[RunRecord]) -> None:
    runs = [measured_run(r) for r in records if r.seed == 0]
    assert default_selection(runs) == "seeds=0 arms=no_sync-start,matched_random-of-wa_ewma-d0"
    split = split_runs(runs, selection=None)
    assert [r.key.arm for r in split.held_out] == ["no_sync-end"]


def test_a_run_is_told_by_its_content(records: list[RunRecord]) -> None:
    key = run_key(records[0])
    assert key == run_key(records[0])
    column = records[0].requests.schema.get_field_index("done_at_s")
    moved = records[0].requests.column("done_at_s").to_numpy() + 0.001
    edited = replace(
        records[0], requests=records[0].requests.set_column(column, "done_at_s", [moved])
    )
    assert run_key(edited).content_sha256 != key.content_sha256
    assert run_key(edited).name == key.name
    assert len({run_key(r).content_sha256 for r in records}) == len(records)


def test_noise_is_left_at_0_where_the_runs_cannot_tell(records: list[RunRecord]) -> None:
    run = measured_run(records[0])
    bare = replace(run, counted=np.zeros(len(run.at_s), bool))
    found = Fitted(plant=TRUTH, objective=0.0, evaluations=1, requests=0, calm=False)
    assert with_noise(found, [bare]) == TRUTH


def test_the_loss_of_the_true_plant_is_nil_and_grows_with_distance(
    records: list[RunRecord],
) -> None:
    runs = [(measured_run(r),) for r in records[:3]]
    losses = [
        loss(runs, plant=TRUTH.model_copy(update={"step_base_s": 0.002 * f}))
        for f in (1.0, 1.1, 1.5)
    ]
    assert losses[0] == pytest.approx(0.0, abs=1e-12)
    assert losses[0] < losses[1] < losses[2]
    assert math.isfinite(losses[2])


@pytest.mark.usefixtures("short_search")
def test_traffic_that_cannot_be_made_again_leaves_decisions_open_and_says_so() -> None:
    study = synthetic_study(seeds=[0, 1])
    records = plant_records(TRUTH, seeds=[0, 1], horizon_s=40.0, judge=[])
    other = study.load.model_copy(update={"period_s": 11.0})
    made = calibrate_runs(
        study_of(records[0]).model_copy(update={"load": other}),
        records,
        selection="seeds=0 arms=no_sync-*,matched*",
        seed=0,
        study_dir=None,
    )
    assert made.transfer is not None
    assert made.transfer.decisions == ()
    assert made.transfer.replayed == ()
    assert "was on other requests" in made.transfer.notes[0]


def why_not(calibration: Calibration, *, engine: str, engine_version: str) -> str | None:
    """Why a replay on this plant must not stand for the real server; None when it may."""
    return (
        of_another_server(calibration, engine=engine, engine_version=engine_version)
        or unsettled(calibration)
        or missed(calibration)
    )
