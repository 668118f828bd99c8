"""The paper's settings in replay: read from its tables, exposure exact, no policy in the first."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper_regimes.__main__ import app
from experiments.paper_regimes.effects import REPRODUCED, Arm, Effect, most_over_least
from experiments.paper_regimes.looped import (
    KNOWS_BURSTS,
    LEAST_DISTANCE_S,
    bursty_load,
    on_a_circle,
    paper_plant,
    placed,
    played,
    steady_load,
)
from experiments.paper_regimes.matched import study_of
from experiments.paper_regimes.published import DATA, Published, read_published
from orchestrator.arms import study_corridor
from policies.streams import stream


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published()


def config_of(label: str, parameter: str) -> float:
    with (DATA / "policy_config.csv").open() as file:
        (found,) = [
            r for r in csv.DictReader(file) if (r["label"], r["parameter"]) == (label, parameter)
        ]
    return float(found["value"])


def test_the_settings_are_those_of_the_paper(published: Published) -> None:
    assert (published.users, published.quiet_users, published.busy_users) == (8, 4, 12)
    assert (published.window_s, published.horizon_s, published.slo_s) == (8.0, 600.0, 1.0)
    assert (published.burst_period_s, published.burst_s) == (120.0, 30.0)
    assert published.factor == pytest.approx(1.556, abs=5e-4)
    windows = {
        p: np.mean([r.exposure.windows for r in runs]) for p, runs in published.steady.items()
    }
    assert windows["fixed_h_256"] == pytest.approx(22.4, abs=0.05)
    assert windows["random_matched"] == pytest.approx(8.2, abs=0.05)


@pytest.mark.parametrize("name", ["steady", "bursty"])
def test_the_studies_have_the_published_settings(published: Published, name: str) -> None:
    study = study_of(name)
    load = {"steady": steady_load, "bursty": bursty_load}[name](published)
    assert study.load == load
    assert study.slo.e2e_s == published.slo_s
    assert (study.horizon_s, study.merge.window_s) == (published.horizon_s, published.window_s)
    assert study.corridor.floor_steps == config_of("wa_diloco", "min_h")
    assert study.corridor.ceiling_steps == config_of("wa_diloco", "max_h")
    assert study.corridor.budget_merges in study_corridor(study).budgets()


def test_an_answer_takes_as_long_as_the_published_counts_say(published: Published) -> None:
    """Without windows the replay makes users x horizon / answer requests, in whole rounds."""
    plant, load = paper_plant(published), steady_load(published)
    run = played(published, plant, load, np.empty(0))
    assert run.requests == 8 * int(np.ceil(600.0 / published.answer_s))
    assert (run.violations, run.inside, run.p95_ratio, run.windows) == (0, 0, None, 0.0)
    slowed = played(published, plant, load, np.array([20.0 + 40.0 * k for k in range(14)]))
    assert slowed.requests < run.requests
    assert slowed.violations / slowed.windows == pytest.approx(53, abs=3)
    assert slowed.p95_ratio == pytest.approx(published.factor, rel=0.01)


def test_starts_keep_their_distance_around_the_circle() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        starts = on_a_circle(8, length_s=200.0, least_s=18.0, rng=rng)
        gaps = np.diff(np.append(starts, starts[0] + 200.0))
        assert gaps.min() >= 18.0 - 1e-9
        assert ((starts >= 0.0) & (starts < 200.0)).all()
    with pytest.raises(ValueError, match="12 starts at least 18 s apart do not fit into 200 s"):
        on_a_circle(12, length_s=200.0, least_s=18.0, rng=rng)


def test_windows_are_as_many_as_published_and_only_one_schedule_knows_the_bursts(
    published: Published,
) -> None:
    rng = stream(1, "test")
    for label, arm in published.bursty.items():
        exposure = arm.exposures[0]
        counts = [len(placed(label, exposure, published, rng=rng)) for _ in range(50)]
        assert np.mean(counts) == pytest.approx(exposure.windows, abs=0.5)
    starts = placed(KNOWS_BURSTS, published.bursty[KNOWS_BURSTS].exposures[0], published, rng=rng)
    assert np.diff(starts).min() >= LEAST_DISTANCE_S
    into = starts % 120.0
    assert ((into >= 30.0) & (into <= 112.0)).all()


def test_ratios_are_of_policies_and_reproduced_means_near() -> None:
    arms = {
        "a": Arm(rate=0.2, requests=100, windows=4),
        "b": Arm(rate=0.1, requests=100, windows=2),
    }
    assert most_over_least(lambda a: a.rate)(arms) == 2.0
    assert most_over_least(lambda a: a.per_window)({**arms, "random": arms["b"]}) == 1.0
    near = Effect(
        load="steady", what="x", published=2.0, replayed=2.0 * (1 + REPRODUCED - 1e-9), matched=None
    )
    assert near.reproduced
    assert not Effect(load="steady", what="x", published=2.0, replayed=1.7, matched=None).reproduced


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_committed_page_is_what_the_command_writes(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert found.exit_code == 0
    committed = Path(__file__).parents[2] / "experiments/paper_regimes/README.md"
    assert (tmp_path / "README.md").read_text() == committed.read_text()
    assert (tmp_path / "exposure.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_json_holds_the_unrounded_figures() -> None:
    found = json.loads(CliRunner().invoke(app, ["--json", "--replicates", "5"]).stdout)
    assert (found["source"], found["engine"]) == ("replay", "model")
    spread = found["effects"][0]
    rates = [arm["rate"] for arm in found["replayed"]["steady"].values()]
    assert spread["replayed"] == pytest.approx(max(rates) / min(rates))
    assert spread["matched"] < 1.3 < spread["replayed"]


def test_more_replicates_than_can_be_held_are_refused() -> None:
    assert CliRunner().invoke(app, ["--replicates", str(10**14)]).exit_code == 2
