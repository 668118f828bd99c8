"""Every study of the project can be planned, and a README says the thresholds that its YAML has."""

import json
from pathlib import Path

import pytest

from orchestrator.arms import expand_arms, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.judge import least_attainable_p
from orchestrator.plan import make_plan
from orchestrator.study import load_study
from orchestrator.workload.config import TraceConfig
from orchestrator.workload.history import told_history
from orchestrator.workload.requests import check_requests, make_requests
from tests.benchmarks.regimes import expectations

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STUDIES = sorted(EXPERIMENTS.glob("*/study.yaml"))
REAL = EXPERIMENTS / "real_onoff" / "study.yaml"
REGIMES = sorted(EXPERIMENTS.glob("regime_*/study.yaml"))
COMPARED = {"no_sync", "matched_random", "placebo", "oracle", "aa"}


def name(path: Path) -> str:
    return path.parent.name


def readme_of(path: Path) -> str:
    return " ".join((path.parent / "README.md").read_text(encoding="utf-8").split())


def stated(study: StudyConfig) -> dict[str, str]:
    """What a study's README says was fixed beforehand, from the study itself."""
    gate, corridor, tick_s = study.gate, study_corridor(study), study.tick_s
    assert study.history is not None
    low_s, high_s = corridor.floor_ticks * tick_s, corridor.ceiling_ticks * tick_s
    return {
        "judged, Holm over all": ", ".join(study.judge),
        "violation": f"above {study.slo.e2e_s:g} s end to end, or failed",
        "merges of every arm": f"{study.corridor.budget_merges} of {study.merge.window_s:g} s in "
        f"{study.horizon_s:g} s, {low_s:g} to {high_s:g} s apart",
        "traffic known before the run": f"{study.history.length_s:g} s",
        "alpha": f"{gate.alpha:g}",
        "lower bound of the gain at least": f"{100 * gate.relative_gain_floor:g} %",
        "tie": f"90 % interval of the gain within {100 * gate.tie_half_width:g} %",
        "effect of a merge, p95 ratio": f"lower bound above {gate.effect_ratio_floor:g}",
        "placebo, p95 ratio": f"90 % interval inside {gate.placebo_ratio_low:g} to "
        f"{gate.placebo_ratio_high:g}",
        "no_sync violates at most": f"{100 * gate.max_no_sync_violation_fraction:g} %",
        "no_sync at start and end": f"equal within {100 * gate.drift_margin_fraction:g} percentage "
        f"points, from {gate.min_seeds_for_drift} seeds on",
        "seeds of the live study": f"{study.seeds[0]} to {study.seeds[-1]}",
    }


@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_the_first_seed_of_every_study_can_be_run(path: Path) -> None:
    study = load_study(path)
    seed, folder = study.seeds[0], path.parent
    requests = make_requests(
        study.load,
        seed=seed,
        horizon_s=study.horizon_s,
        sidecars=study.sidecars.count,
        study_dir=folder,
    )
    check_requests(requests, max_model_len_tokens=study.sidecars.engine.max_model_len_tokens)
    corridor = study_corridor(study)
    assert study.corridor.budget_merges in corridor.budgets()
    assert study.warmup_s <= corridor.floor_ticks * study.tick_s
    told = told_history(study, seed=seed, study_dir=folder)
    assert (told is None) == (study.history is None)


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_every_study_plans_cleanly(path: Path) -> None:
    plan, _ = make_plan(load_study(path), path.parent)
    here = ("resources", "sidecars.engine", "islands.data")  # what this machine has, not the study
    assert [p for p in plan.problems if not p.startswith(here)] == []


@pytest.mark.parametrize("path", [*REGIMES, REAL], ids=name)
def test_a_study_s_readme_says_what_its_yaml_fixes(path: Path) -> None:
    study, text = load_study(path), readme_of(path)
    assert study.study == name(path)
    rows = [f"| {what} | {value} |" for what, value in stated(study).items()]
    assert [row for row in rows if row not in text] == []


def test_the_real_study_is_held_out_and_its_readme_says_what_it_costs() -> None:
    study, text = load_study(REAL), readme_of(REAL)
    assert study.tuned_on is not None
    tuned = study.tuned_on.seeds
    assert not set(tuned) & set(study.seeds)
    assert f"on the arrivals of seeds {tuned[0]} to {tuned[-1]}, which" in text
    assert f"{len(expand_arms(study)) * len(study.seeds)} runs" in text


def test_the_real_study_s_readme_gives_the_errors_of_its_own_plant() -> None:
    text, plant = readme_of(REAL), json.loads(REAL.with_name("plant.json").read_text())
    figures = {(f["figure"], f["group"]): f for f in plant["transfer"]["figures"]}
    p95, rate = figures["e2e_p95_s", "merging"], figures["violation_rate", "merging"]
    ratio = figures["effect_ratio", "windows"]
    for row in (
        f"| {p95['measured']:.2f} s | {p95['predicted']:.2f} s | {100 * p95['error']:+.1f} % |",
        f"| {100 * rate['measured']:.1f} % | {100 * rate['predicted']:.1f} % |",
        f"| {ratio['measured']:.2f} | {ratio['predicted']:.2f} | {100 * ratio['error']:+.1f} % |",
    ):
        assert row in text
    missed = [f for f in (p95, rate, ratio) if not f["within"]]
    assert text.count("missed |") == len(missed)


def test_every_experiment_is_in_the_table_with_a_readme_of_its_own() -> None:
    table = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    folders = [p for p in EXPERIMENTS.iterdir() if p.is_dir() and any(p.glob("*.yaml"))]
    assert [p.name for p in folders if f"]({p.name})" not in table] == []
    without = [p.name for p in folders if not (p / "README.md").exists()]
    assert without == ["two_minutes"]  # quickstart's, cut short; the table says what it is for


def test_a_time_scale_is_called_what_it_is() -> None:
    """``time_scale`` seconds of the trace are one of the run: below 1 is slower than it was."""
    for path in STUDIES:
        load, text = load_study(path).load, path.read_text(encoding="utf-8")
        if isinstance(load, TraceConfig) and load.time_scale != 1.0:
            word, wrong = ("slower", "faster") if load.time_scale < 1.0 else ("faster", "slower")
            assert f"{word} than real time: {load.time_scale:g} s of it in 1 s" in text, path
            assert f"{wrong} than real time" not in text, path


@pytest.mark.parametrize("path", REGIMES, ids=name)
def test_a_regime_s_seeds_and_what_is_expected_of_it(path: Path) -> None:
    study = load_study(path)
    assert study.seeds == tuple(range(len(study.seeds)))
    expected = expectations(path)
    assert list(expected) == list(study.judge)
    assert set(expected.values()) <= {"PASS", "no PASS", "INCONCLUSIVE", "open"}


@pytest.mark.parametrize("path", REGIMES, ids=name)
def test_a_regime_has_every_control_and_can_be_judged(path: Path) -> None:
    study = load_study(path)
    arms = expand_arms(study)
    assert {a.kind for a in arms} == COMPARED | {"policy"}
    assert {a.of for a in arms if a.kind == "matched_random"} == set(study.judge)
    assert {a.of for a in arms if a.kind == "aa"} == set(study.judge)
    assert {a.policy for a in arms if a.kind == "policy"} == set(study.policies)
    # a claim is in reach except where the trace ends
    assert (least_attainable_p(study) <= study.gate.alpha) != isinstance(study.load, TraceConfig)


def test_the_regimes_differ_in_their_traffic_alone() -> None:
    """Same server, policies and thresholds, so a verdict that differs comes from the traffic."""
    studies = [load_study(path) for path in REGIMES]
    assert len(studies) == 6
    assert len({s.regime for s in studies}) == 6
    for part in ("gate", "arms", "judge", "slo", "sidecars", "islands", "merge", "tick_s"):
        assert len({repr(getattr(s, part)) for s in studies}) == 1, part
    names = (*studies[0].judge, "pressure_gate", "wa_score")  # fixed_h keeps to the cadence
    assert len({repr([s.policies[name] for name in names]) for s in studies}) == 1
