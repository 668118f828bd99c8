"""What a study will do, cost and be able to show; and why it cannot run here, before it starts."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from actors.config import ModelConfig, VllmConfig
from actors.events import HistoryTold
from actors.island.data.cache import CacheFailed
from actors.island.data.dataset import open_data
from actors.island.data.text import passed_over
from actors.island.model_folder import check_vocabulary, check_weights
from actors.load.request import Request
from actors.serving.engine import ServerFailed
from actors.serving.sidecar import check_engine
from actors.serving.vllm_engine import assumed_hub_id, check_islands_shape
from orchestrator.arms import block_order, check_warmup, expand_arms, study_corridor
from orchestrator.calibration.pooled import WINDOWS_FOR_REGIME
from orchestrator.calibration.power import PlannedPower, planned_power
from orchestrator.calibration.rates import FREE_CADENCE
from orchestrator.calibration.recorded import arrivals_cost
from orchestrator.cluster.placement import plan_placement, why_infeasible
from orchestrator.config import MatchedRandomArm, StudyConfig
from orchestrator.judge import least_attainable_p
from orchestrator.machine import port_free
from orchestrator.ray_address import names_cluster
from orchestrator.workload.config import TraceConfig
from orchestrator.workload.drafts import load_steps, trace_slices
from orchestrator.workload.history import seed_requests, told_history
from orchestrator.workload.requests import check_requests, request_hash
from policies.corridor import Corridor

ENGINE_START_S = {"vllm": 100.0, "mock": 5.0, "attach": 1.0}  # typical, on two cores
STAGE_START_S = 40.0  # Ray, islands (torch import), clients
ARM_OVERHEAD_S = 4.0  # reset, warm-up requests, drain, record
MOST_NAMED = 3  # files of a folder
FINISH_S = 30.0  # metrics, gate, plots, report, MLflow's first schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan as printed; ``problems`` empty means that the study can run here."""

    study: str
    question: str
    engine: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: int
    expected_wall_s: float
    budget_merges: int | None  # None: free cadence
    feasible_budgets: tuple[int, ...]
    feasible_schedules: int | None
    corridor_ticks: dict[str, int]
    requests: dict[int, int]
    request_hashes: dict[int, str]
    longest_request_tokens: int
    max_model_len_tokens: int
    bundles: tuple[dict[str, float], ...]
    strategy: str
    nodes: tuple[dict[str, float], ...]
    judge: tuple[str, ...]
    least_attainable_p: float
    alpha: float
    power: PlannedPower | None  # None: free cadence, which makes no placement claim
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        schedules = self.feasible_schedules  # an exact big integer: more than JSON readers hold
        return {
            **asdict(self),
            "feasible_schedules": None if schedules is None else str(schedules),
        }


def study_requests(study: StudyConfig, study_folder: Path) -> dict[int, tuple[Request, ...]]:
    """The request file of each seed; checked against the model length."""
    limit = study.sidecars.engine.max_model_len_tokens
    files = {}
    for seed in study.seeds:
        files[seed] = seed_requests(study, seed=seed, study_dir=study_folder)
        check_requests(files[seed], max_model_len_tokens=limit)
    return files


def study_histories(study: StudyConfig, study_folder: Path) -> dict[int, HistoryTold | None]:
    """What the policies are told of the traffic before each seed's run; None: nothing."""
    return {seed: told_history(study, seed=seed, study_dir=study_folder) for seed in study.seeds}


def make_plan(
    study: StudyConfig, study_folder: Path, *, gain: float | None = None
) -> tuple[Plan, dict[int, tuple[Request, ...]]]:
    """All that can be known before a start. Bad input: ValueError; lacking means: problems.

    ``gain``: the relative gain whose power is stated; twice the gate's floor where None.
    """
    corridor = study_corridor(study)
    check_warmup(study, corridor)
    requests = study_requests(study, study_folder)
    study_histories(study, study_folder)  # a trace that does not reach back is refused here
    placement = plan_placement(study)
    nodes = present_nodes()
    arms = expand_arms(study)
    budget = study.corridor.budget_merges
    runs = len(study.seeds) * len(block_order(study, study.seeds[0]))
    start_s = STAGE_START_S + ENGINE_START_S[study.sidecars.engine.kind]
    plan = Plan(
        study=study.study,
        question=study.question,
        engine=study.sidecars.engine.kind,
        arms=tuple(a.label for a in arms),
        seeds=study.seeds,
        runs=runs,
        expected_wall_s=start_s + runs * (study.horizon_s + ARM_OVERHEAD_S) + FINISH_S,
        budget_merges=budget,
        feasible_budgets=tuple(corridor.budgets()),
        feasible_schedules=None if budget is None else corridor.count(budget),
        corridor_ticks={
            "floor": corridor.floor_ticks,
            "ceiling": corridor.ceiling_ticks,
            "width": corridor.width_ticks,
            "horizon": corridor.horizon_ticks,
        },
        requests={seed: len(rows) for seed, rows in requests.items()},
        request_hashes={seed: request_hash(rows) for seed, rows in requests.items()},
        longest_request_tokens=max(
            r.prompt_tokens + r.output_tokens for rows in requests.values() for r in rows
        ),
        max_model_len_tokens=study.sidecars.engine.max_model_len_tokens,
        bundles=placement.bundles,
        strategy=placement.strategy,
        nodes=tuple(nodes),
        judge=study.judge,
        least_attainable_p=least_attainable_p(study),
        alpha=study.gate.alpha,
        power=None
        if budget is None
        else overlap_power(study, corridor, requests, budget=budget, gain=gain),
        notes=(*_trace_notes(study, study_folder), *data_notes(study), *_notes(study)),
        problems=tuple(_problems(study, why_infeasible(placement, nodes))),
    )
    return plan, requests


def overlap_power(
    study: StudyConfig,
    corridor: Corridor,
    requests: dict[int, tuple[Request, ...]],
    *,
    budget: int,
    gain: float | None,
) -> PlannedPower:
    """Power on the study's own request files: counted requests that arrive in a window."""
    moments = []
    for rows in requests.values():
        at_s = np.array([r.scheduled_at_s for r in rows], dtype=np.float64)
        cost = arrivals_cost(at_s[at_s >= study.warmup_s], corridor, tick_s=study.tick_s)
        moments.append(corridor.moments(cost, budget))
    draws = [a.draws for a in study.arms if isinstance(a, MatchedRandomArm) and a.of in study.judge]
    return planned_power(
        [mean for mean, _ in moments],
        [variance for _, variance in moments],
        gain=2.0 * study.gate.relative_gain_floor if gain is None else gain,
        gate=study.gate,
        family=len(study.judge),
        draws=min(draws, default=1),
    )


def present_nodes() -> list[dict[str, float]]:
    """Nodes of the cluster that RAY_ADDRESS names; else this machine as Ray would count it."""
    if names_cluster():
        from orchestrator.cluster.nodes import cluster_nodes
        from orchestrator.cluster.stage import connect

        connect()
        return cluster_nodes()
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    node = {"CPU": float(len(os.sched_getaffinity(0)))}
    return [{**node, "GPU": float(gpus)} if gpus else node]


def _trace_notes(study: StudyConfig, study_folder: Path) -> list[str]:
    """What is odd about the trace of the load, and what is done to it."""
    if not isinstance(study.load, TraceConfig):
        return []
    trace, _ = trace_slices(study.load, horizon_s=study.horizon_s, study_dir=study_folder)
    steps = load_steps(study.load, trace, horizon_s=study.horizon_s)
    return [*(f"load: {note}" for note in trace.notes), f"load: {'; '.join(steps)}"]


def _notes(study: StudyConfig) -> list[str]:
    """What the study cannot show; said before it runs."""
    arms = expand_arms(study)
    if study.free_cadence:
        notes = [FREE_CADENCE]
        if not any(a.kind == "no_sync" for a in arms):
            notes.append("arms: no no_sync arm, so no rate has a difference to none")
        return notes + _engine_notes(study)
    notes = []
    for name in study.judge:
        if not any(a.kind == "policy" and a.policy == name for a in arms):
            notes.append(f"judge: {name} has no policy arm, so it cannot be judged")
        if not any(a.kind == "matched_random" and a.of == name for a in arms):
            notes.append(f"judge: {name} has no matched_random arm, so no claim can be reached")
    again = any(a.kind == "aa" and a.of in study.judge for a in arms)
    for name in study.judge:
        draws = sum(a.kind == "matched_random" and a.of == name for a in arms)
        if not again and draws < 2:
            notes.append(
                f"judge: {name} has neither an aa arm nor two draws of matched random, so "
                "negative_controls is not assessable"
            )
    for kind in ("no_sync", "placebo"):
        if not any(a.kind == kind for a in arms):
            notes.append(f"arms: no {kind} arm, so its condition is not assessable")
    if isinstance(study.load, TraceConfig) and len(study.seeds) < WINDOWS_FOR_REGIME:
        notes.append(
            f"load: {len(study.seeds)} disjoint windows of one trace speak of this trace, not of "
            "the regime"
        )
    least = least_attainable_p(study)
    if least > study.gate.alpha:
        notes.append(
            f"{len(study.seeds)} seeds: least attainable p {least:g} after Holm over "
            f"{max(1, len(study.judge))} is above alpha {study.gate.alpha:g}; no PASS is possible"
        )
    return notes + _engine_notes(study)


def _engine_notes(study: StudyConfig) -> list[str]:
    engine = study.sidecars.engine
    if isinstance(engine, VllmConfig) and not names_cluster():
        try:
            assumed = assumed_hub_id(engine.model)
        except ValueError:  # told as a problem
            assumed = None
        return [] if assumed is None else [f"sidecars.engine.model: {assumed}"]
    if engine.kind != "mock":
        return []
    return ["engine=mock: a simulated server; results say so and license no claim"]


def _problems(study: StudyConfig, resources: str | None) -> list[str]:
    problems = [f"resources: {resources}"] if resources else []
    engine = _engine_problem(study)
    problems += [f"sidecars.engine: {engine}"] if engine else []
    port = getattr(study.sidecars.engine, "port", 0)
    if port and not port_free(port):
        problems.append(
            f"sidecars.engine.port: {port} is in use; end what listens there, or give port: 0"
        )
    problems += [data] if (data := data_problem(study)) else []
    if study.islands.device == "cuda" and study.islands.num_gpus == 0:
        problems.append("islands.device: cuda with num_gpus: 0; give each island a share of a GPU")
    free_bytes = psutil.virtual_memory().available
    if study.resources.memory_bytes > free_bytes:
        problems.append(
            f"resources.memory_bytes: {study.resources.memory_bytes / 1e9:.1f} GB needed, "
            f"{free_bytes / 1e9:.1f} GB free; end other programs or lower the need"
        )
    return problems


def data_problem(study: StudyConfig) -> str | None:
    """Whether the text here is there, long enough and within the vocabulary of a model that is.

    Token files are written here, once; on a cluster the islands' nodes write and decide.
    """
    if names_cluster():
        return None
    islands = study.islands
    shards = islands.shards or islands.count
    try:
        data = open_data(islands.data, islands=shards, seq_len_tokens=islands.seq_len_tokens)
        for shard in range(shards):
            data.shard(shard)
    except (ValueError, CacheFailed) as error:
        return f"islands.data: {error}"
    try:
        check_vocabulary(islands.model, tokens=data.vocab_size)
        check_weights(islands.model)
    except (ValueError, OSError) as error:
        named = str(error).startswith(("model.", "data."))
        return f"islands.{error}" if named else f"islands.model: {error}"
    return None


def data_notes(study: StudyConfig) -> list[str]:
    """Files of the text folder that nothing is trained on; what is wrong is data_problem's."""
    if names_cluster():
        return []
    try:
        files = passed_over(study.islands.data)
    except ValueError:
        return []
    if not files:
        return []
    names = ", ".join(file.name for file in files[:MOST_NAMED])
    names += ", ..." if len(files) > MOST_NAMED else ""
    return [f"islands.data: passed over, for they hold no UTF-8 text: {len(files)} ({names})"]


def _engine_problem(study: StudyConfig) -> str | None:
    """What the serving room refuses before a start; on a cluster the sidecar's node decides."""
    if names_cluster():
        return None
    engine, model = study.sidecars.engine, study.islands.model
    try:
        check_engine(engine, sidecars=study.sidecars.count)
        if isinstance(engine, VllmConfig) and isinstance(model, ModelConfig):
            check_islands_shape(engine, model)
    except (ValueError, ServerFailed) as error:
        return str(error)
    return None
