"""The plan: what a study will do and show, and every reason why it cannot run here."""

import socket
from pathlib import Path

import numpy as np
import pytest

from actors.config import FileTokenizerConfig, MockConfig
from orchestrator.arms import block_order, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.plan import make_plan, present_nodes
from orchestrator.study import load_study
from orchestrator.workload.config import TraceConfig
from policies.streams import stream
from tests.actors.island.data import forms

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(EXPERIMENTS / "gate_check" / "planted.yaml")


def with_engine(study: StudyConfig, **changes: object) -> StudyConfig:
    engine = study.sidecars.engine.model_copy(update=changes)
    return study.model_copy(
        update={"sidecars": study.sidecars.model_copy(update={"engine": engine})}
    )


def test_plan_counts_runs_requests_and_schedules(study: StudyConfig) -> None:
    plan, requests = make_plan(study, EXPERIMENTS / "gate_check")
    assert plan.runs == 12 * len(block_order(study, 0)) == 12 * 5
    assert plan.requests == {seed: len(rows) for seed, rows in requests.items()}
    assert len(set(plan.request_hashes.values())) == 12
    assert plan.feasible_schedules is not None
    assert plan.feasible_schedules > 100
    assert study.corridor.budget_merges in plan.feasible_budgets
    assert plan.longest_request_tokens <= plan.max_model_len_tokens
    assert plan.least_attainable_p == 2.0**-12
    assert plan.problems == ()
    assert any("engine=mock" in note for note in plan.notes)


def test_power_comes_from_the_study_s_own_request_files(study: StudyConfig) -> None:
    plan, requests = make_plan(study, EXPERIMENTS / "gate_check", gain=0.3)
    power, budget = plan.power, study.corridor.budget_merges
    assert power is not None
    assert budget is not None
    assert (power.gain, power.n, power.family, power.draws) == (0.3, 12, 1, 1)
    assert power.power is not None
    assert power.n_for_80 is not None
    assert (power.power >= 0.8) == (power.n_for_80 <= 12)
    corridor = study_corridor(study)
    draws = corridor.sample(budget, size=400, rng=stream(0, "draws"))
    relative = []
    for rows in requests.values():
        at_s = np.array([r.scheduled_at_s for r in rows if r.scheduled_at_s >= study.warmup_s])
        start_s = draws[:, :, None] * study.tick_s
        hit = (at_s >= start_s) & (at_s < start_s + study.merge.window_s)
        relative.append(hit.sum(axis=(1, 2)))
    spread = np.sqrt(np.mean([x.var() for x in relative]))
    level = np.sqrt(np.mean([x.mean() ** 2 for x in relative]))
    assert power.random_sd_fraction == pytest.approx(spread / level, rel=0.1)
    default, _ = make_plan(study, EXPERIMENTS / "gate_check")
    assert default.power is not None
    assert default.power.gain == 2 * study.gate.relative_gain_floor
    assert default.to_json()["power"]["basis"].endswith("not latencies")


def test_too_few_seeds_for_alpha_are_said_beforehand(study: StudyConfig) -> None:
    few = study.model_copy(update={"seeds": (0, 1)})
    plan, _ = make_plan(few, EXPERIMENTS / "gate_check")
    assert plan.least_attainable_p == 0.25
    assert any("no PASS is possible" in note for note in plan.notes)
    assert any(
        "neither an aa arm nor two draws of matched random, so negative" in note
        for note in plan.notes
    )


def test_a_request_longer_than_the_model_is_refused(study: StudyConfig) -> None:
    with pytest.raises(ValueError, match="token"):
        make_plan(with_engine(study, max_model_len_tokens=20), EXPERIMENTS / "gate_check")


def test_a_port_in_use_is_a_problem(study: StudyConfig) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        plan, _ = make_plan(with_engine(study, port=port), EXPERIMENTS / "gate_check")
    assert any(f"{port} is in use" in p for p in plan.problems)
    assert isinstance(study.sidecars.engine, MockConfig)


def test_a_missing_model_folder_is_a_problem() -> None:
    quick = load_study(EXPERIMENTS / "quickstart" / "study.yaml")
    plan, _ = make_plan(with_engine(quick, model="./no-such-model"), EXPERIMENTS / "quickstart")
    assert any("'./no-such-model': no such folder" in p for p in plan.problems)


def test_lacking_resources_and_memory_are_problems(study: StudyConfig) -> None:
    islands = study.islands.model_copy(update={"num_gpus": 64.0})
    resources = study.resources.model_copy(update={"memory_bytes": 10**15})
    greedy = study.model_copy(update={"islands": islands, "resources": resources})
    plan, _ = make_plan(greedy, EXPERIMENTS / "gate_check")
    assert any("GPU: 128 needed" in p for p in plan.problems)
    assert any("resources.memory_bytes" in p for p in plan.problems)


def test_a_vocabulary_above_the_models_is_a_problem(study: StudyConfig, tmp_path: Path) -> None:
    forms.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = FileTokenizerConfig(kind="file", path=str(tmp_path / "tokenizer.json"))
    data = forms.write("jsonl", tmp_path / "text", ["w1 " * 5000], tokenizer=tokenizer)
    islands = study.islands.model_copy(update={"data": data})
    plan, _ = make_plan(study.model_copy(update={"islands": islands}), EXPERIMENTS / "gate_check")
    assert any("a vocabulary of 302, the model one of 260" in p for p in plan.problems)


def test_every_window_is_measured_or_the_study_refused(study: StudyConfig) -> None:
    late = study.model_copy(update={"warmup_s": 3.0})
    with pytest.raises(ValueError, match=r"warmup_s=3 is above the first possible merge at 1 s"):
        make_plan(late, EXPERIMENTS / "gate_check")


def test_this_machine_is_one_node_with_its_cores() -> None:
    (node,) = present_nodes()
    assert node["CPU"] >= 1


def test_what_is_odd_about_a_trace_is_a_note_of_the_plan(tmp_path: Path) -> None:
    study = load_study(EXPERIMENTS / "quickstart" / "study.yaml")
    lines = [f"2023-11-16 18:00:{s:02}.0000000,100,10" for s in (0, 9, 4, *range(10, 60))]
    (tmp_path / "odd.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines)
    )
    assert isinstance(study.load, TraceConfig)
    rule = study.load.slice.model_copy(update={"min_requests": 1, "min_quiet_fraction": 0.0})
    load = study.load.model_copy(update={"path": "odd.csv", "slice": rule})
    odd = study.model_copy(update={"load": load, "seeds": (0,)})
    plan, _ = make_plan(odd, tmp_path)
    notes = [note for note in plan.notes if note.startswith("load: ")]
    assert "1 row(s) earlier than the row before, the first at line 4" in notes[0]
    assert "read 53 row(s) as azure" in notes[1]
