"""The audit of the published figures: plain arithmetic gives them again, and no claim comes out."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from typer.testing import CliRunner

from experiments.paper_audit.__main__ import app
from orchestrator.calibration.verdict import Status
from orchestrator.study import load_study

Rows = list[dict[str, str]]

POLICIES = (
    "fixed_h_256",
    "fixed_h_512",
    "pressure_gate",
    "pressure_gate_matched",
    "random_matched",
    "wa_diloco",
)


@pytest.fixture(scope="module")
def data(checkout: Path) -> Path:
    return checkout / "experiments" / "paper_audit" / "data"


@pytest.fixture(scope="module")
def steady(data: Path) -> Rows:
    with (data / "stage11.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The JSON of the command, at its own data."""
    done = CliRunner().invoke(app, ["--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of(rows: Rows, policy: str, value: Callable[[dict[str, str]], float]) -> np.ndarray:
    return np.array([value(r) for r in rows if r["policy"] == policy])


def windows(row: dict[str, str]) -> float:
    repeats = 600.0 / float(row["sync_trace_duration_s"])
    return int(row["sync_events"]) * repeats


def per_window(row: dict[str, str]) -> float:
    return int(row["slo_violations"]) / windows(row)


def rate(row: dict[str, str]) -> float:
    return int(row["slo_violations"]) / int(row["requests"])


def flip_p(differences: Sequence[float] | np.ndarray) -> float:
    """Exact one-sided sign-flip p, by scipy."""
    done = stats.permutation_test(
        (np.asarray(differences),),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        alternative="less",
        n_resamples=np.inf,
        vectorized=True,
    )
    return float(done.pvalue)


def verdicts(figures: dict[str, Any], study: str) -> dict[str, dict[str, Any]]:
    found = next(j for j in figures["judgements"] if j["study"] == study)
    return {v["policy"]: v for v in found["verdicts"]}


def condition(verdict: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in verdict["conditions"] if c["name"] == name)


def values(figures: dict[str, Any], subject: str) -> dict[str, Any]:
    found = [f["values"] for f in figures["findings"] if subject in f["subject"]]
    assert len(found) == 1
    inside: dict[str, Any] = found[0]
    return inside


def test_realised_windows_are_those_of_repeated_traces(
    figures: dict[str, Any], steady: Rows
) -> None:
    ours = values(figures, "merges in a run")
    for policy in POLICIES:
        assert ours[policy] == pytest.approx(of(steady, policy, windows).mean())
    published = [float(r["derived_windows_in_replay"]) for r in steady]
    assert [windows(r) for r in steady] == pytest.approx(published, abs=1e-3)


def test_what_decides_the_rate_is_the_share_in_windows(
    figures: dict[str, Any], steady: Rows
) -> None:
    rates = [rate(r) for r in steady]
    shares = [int(r["sync_active_count"]) / int(r["requests"]) for r in steady]
    ours = values(figures, "what decides")
    assert ours["runs"] == 30
    share_r, time_r = (
        stats.pearsonr(x, rates).statistic for x in (shares, [windows(r) for r in steady])
    )
    assert ours["correlation_with_share_in_windows"] == pytest.approx(share_r)
    assert ours["correlation_with_time_in_windows"] == pytest.approx(time_r)
    assert ours["factor_of_share"] == pytest.approx(sum(rates) / sum(shares))
    apart = [abs(int(r["slo_violations"]) - int(r["sync_active_count"])) for r in steady]
    assert ours["largest_difference_requests"] == max(apart) == 48


def test_violations_for_each_window(figures: dict[str, Any], steady: Rows) -> None:
    ours = values(figures, "violations for each realised window")
    for policy in POLICIES:
        count = of(steady, policy, lambda r: int(r["slo_violations"])).sum()
        assert ours[policy] == pytest.approx(count / of(steady, policy, windows).sum())
        assert 44 < ours[policy] < 49


def test_the_per_window_tests_are_exact_sign_flips(figures: dict[str, Any], steady: Rows) -> None:
    wa = of(steady, "wa_diloco", per_window)
    random = of(steady, "random_matched", per_window)
    ours = values(figures, "against random, for each window")
    assert ours["p"] == pytest.approx(flip_p(wa - random))
    assert ours["relative_gain"] == pytest.approx(1 - wa.sum() / random.sum())
    assert (ours["n"], ours["least_p"]) == (5, 1 / 32)
    baselines = values(figures, "fixed and gated")
    for policy in POLICIES[:4]:
        expected = flip_p(wa - of(steady, policy, per_window))
        assert baselines[f"{policy}: p"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("study", "pairs"),
    [
        ("stage 11", [(p, "random_matched") for p in POLICIES if p != "random_matched"]),
        ("stage 11, baselines", [("wa_diloco", p) for p in POLICIES[:4]]),
    ],
)
def test_placement_p_values_equal_scipy_and_statsmodels(
    figures: dict[str, Any], steady: Rows, study: str, pairs: list[tuple[str, str]]
) -> None:
    ours = verdicts(figures, study)
    assert list(ours) == [f"{policy} against {control}" for policy, control in pairs]
    raw = [flip_p(of(steady, a, rate) - of(steady, b, rate)) for a, b in pairs]
    adjusted = multipletests(raw, method="holm")[1]
    assert [v["p_value"] for v in ours.values()] == pytest.approx(raw)
    assert [v["p_holm"] for v in ours.values()] == pytest.approx(list(adjusted))
    assert {v["least_attainable_p"] for v in ours.values()} == {len(pairs) / 32}


def test_the_only_bursty_policy_with_all_seeds_is_tested(
    figures: dict[str, Any], data: Path
) -> None:
    with (data / "stage13.csv").open() as file:
        rows = list(csv.DictReader(file))
    replay, random = (
        of(rows, p, lambda r: float(r["slo_violation_pct"]) / 100)
        for p in ("stage12_calibrated_replay", "random_matched")
    )
    ours = verdicts(figures, "stage 13")
    tested = {name: v for name, v in ours.items() if v["p_holm"] is not None}
    assert list(tested) == ["stage12_calibrated_replay against random_matched"]
    (verdict,) = tested.values()
    assert verdict["p_value"] == pytest.approx(flip_p(replay - random)) == 1 / 32
    assert verdict["p_holm"] == pytest.approx(6 / 32)  # the untested five count with p = 1
    assert verdict["relative_gain"] == pytest.approx(1 - replay.sum() / random.sum())
    assert condition(verdict, "exposure_match")["status"] == Status.NOT_ASSESSABLE


def test_no_comparison_is_pass_and_what_refutes_it_is_named(figures: dict[str, Any]) -> None:
    found = [v for j in figures["judgements"] for v in j["verdicts"]]
    assert len(found) == 17
    for verdict in found:
        assert verdict["verdict"] == "INCONCLUSIVE"
        assert verdict["tier"] is None
        assert verdict["sentence"] is None
        assert verdict["reason"].startswith("load_match is not met: ")
        assert "emulated merge load, matmul, 100 %" in verdict["reason"]
        assert condition(verdict, "replay")["status"] == Status.ABSENT
        assert not [c for c in verdict["conditions"] if c["status"] == Status.MET]


def test_load_and_exposure_say_the_published_numbers(figures: dict[str, Any]) -> None:
    verdict = verdicts(figures, "stage 11, baselines")["wa_diloco against fixed_h_256"]
    load, exposure = (condition(verdict, c) for c in ("load_match", "exposure_match"))
    assert (load["status"], exposure["status"]) == (Status.NOT_MET, Status.NOT_MET)
    assert "6096 requests a run in wa_diloco, 5627 in fixed_h_256" in load["why"]
    assert "8.9 windows a run in wa_diloco, 22.4 in fixed_h_256" in exposure["why"]
    placement = condition(verdict, "matched_random")
    assert placement["why"].startswith("fixed_h_256 is no matched random; ")


def test_published_contrasts_are_multiples_of_the_least_p(figures: dict[str, Any]) -> None:
    ours = values(figures, "contrasts")
    sums = [v for name, v in ours.items() if name.endswith("p x 2^n")]
    assert sums == [2, 11, 32]
    assert {v for name, v in ours.items() if name.endswith(": pairs")} == {2}


def test_the_page_is_one_file_and_says_what_the_terminal_says(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "audit")])
    assert done.exit_code == 0, done.output
    html = (tmp_path / "audit" / "paper_audit.html").read_text()
    assert done.stdout == (tmp_path / "audit" / "paper_audit.md").read_text()
    assert "data:image/png;base64," in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    for text in ("0 of 17 comparisons are PASS", "8.9 windows a run in wa_diloco, 22.4 in"):
        assert text in html
        assert text in done.stdout


def edited(data: Path, to: Path, name: str, change: Callable[[str], str]) -> Path:
    shutil.copytree(data, to)
    table = to / f"{name}.csv"
    before = table.read_text()
    assert change(before) != before
    table.write_text(change(before))
    return to


def test_an_edited_figure_changes_the_page(data: Path, tmp_path: Path) -> None:
    other = edited(data, tmp_path / "data", "stage11", lambda t: t.replace(",1120,", ",1220,"))
    pages = [CliRunner().invoke(app, ["--data", str(d)]).stdout for d in (data, other)]
    lines = [set(page.splitlines()) for page in pages]
    changed = "\n".join(lines[1] - lines[0])
    assert "CONTRADICT" in changed  # the summary table no longer fits
    assert "violations for each realised window" in changed
    assert "CONTRADICT" not in pages[0]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("stage11", lambda t: t.replace("sync_events", "syncs"), "no column sync_events"),
        ("stage11", lambda t: t.replace(",5600,", ",many,"), "requests='many' is no"),
        ("stage11", lambda t: t.replace(",1120,", ",7000,"), "7000 violations among 5600"),
        ("stage11", lambda t: t.replace(",358.515,", ",0,"), "sync_trace_duration_s=0 is not"),
        ("stage13", lambda t: t.replace(",5.574,", ",nan,"), "slo_violation_pct='nan' is no"),
        ("stage13_contrasts", lambda t: t.splitlines()[0] + "\n", "holds no row"),
        ("stage13_contrasts", lambda t: t.replace("wa_diloco", "other"), "no arm 'other'"),
        ("stage14_fabric", lambda t: t + "1,2\n", "line 11: has not as many cells"),
        ("policy_config", lambda t: t.replace("vllm_version", "x"), "no 'vllm_version'"),
    ],
)
def test_a_broken_table_is_one_clear_line(
    data: Path, tmp_path: Path, name: str, change: Callable[[str], str], says: str
) -> None:
    other = edited(data, tmp_path / "data", name, change)
    done = CliRunner().invoke(app, ["--data", str(other)])
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("paper_audit: error: ")
    assert says in line


def test_a_missing_table_is_one_clear_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "stage10.csv: cannot be read (No such file" in done.stderr


def test_the_thresholds_are_those_of_the_projects_own_studies(checkout: Path) -> None:
    ours = json.loads((checkout / "experiments" / "paper_audit" / "gate.json").read_text())
    study = load_study(checkout / "experiments" / "gate_check" / "planted.yaml")
    assert ours == study.gate.model_dump()


def test_an_out_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.paper_audit import __main__ as audit
    from experiments.paper_regimes import __main__ as regimes

    (tmp_path / "file").touch()
    for module, reader in ((audit, "read_tables"), (regimes, "read_published")):
        monkeypatch.setattr(module, reader, lambda *_: pytest.fail("the work was begun"))
        result = CliRunner().invoke(module.app, ["--out", str(tmp_path / "file" / "x")])
        assert result.exit_code == 2
        assert "Not a directory; give a folder's path" in result.output
