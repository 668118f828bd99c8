"""Request files: the same for the same seed, hashed over every field, checked, described."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.load.request import Request
from orchestrator.workload.config import (
    BurstsConfig,
    ClosedLoopConfig,
    GammaConfig,
    LoadConfig,
    OnOffConfig,
    PoissonConfig,
    SliceRule,
    TokenRange,
    TraceConfig,
    TraceSource,
)
from orchestrator.workload.drafts import load_steps, trace_slices
from orchestrator.workload.requests import (
    check_requests,
    make_requests,
    request_hash,
)

HERE = Path()
PROMPT, OUTPUT = TokenRange(low=16, high=64), TokenRange(low=8, high=24)
POISSON = PoissonConfig(kind="poisson", rate_per_s=4.0, prompt_tokens=PROMPT, output_tokens=OUTPUT)
BURSTS = BurstsConfig(
    kind="bursts",
    quiet_rate_per_s=1.0,
    burst_rate_per_s=9.0,
    period_s=6.0,
    burst_s=2.0,
    random_phase=True,
    prompt_tokens=PROMPT,
    output_tokens=OUTPUT,
)
ONOFF = OnOffConfig(
    kind="onoff",
    off_rate_per_s=1.0,
    on_rate_per_s=9.0,
    mean_off_s=4.0,
    mean_on_s=2.0,
    prompt_tokens=PROMPT,
    output_tokens=OUTPUT,
)
AZURE = TraceConfig(
    kind="trace",
    path="AzureLLMInferenceTrace_code.csv",
    time_scale=1.0,
    slice=SliceRule(min_requests=40, max_requests=400, max_burst_requests=60),
    token_scale=0.05,
    prompt_tokens_clip=PROMPT,
    output_tokens_clip=OUTPUT,
)
GAMMA = GammaConfig(
    kind="gamma", rate_per_s=4.0, cv=2.0, prompt_tokens=PROMPT, output_tokens=OUTPUT
)
LOADS: list[LoadConfig] = [POISSON, BURSTS, ONOFF, GAMMA, AZURE]


@pytest.fixture
def traces(checkout: Path) -> Path:
    return checkout / "experiments/traces"


def made(
    load: LoadConfig, folder: Path, *, seed: int = 0, sidecars: int = 1
) -> tuple[Request, ...]:
    return make_requests(load, seed=seed, horizon_s=30.0, sidecars=sidecars, study_dir=folder)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.kind)
@pytest.mark.parametrize("sidecars", [1, 3])
def test_request_files_hold_their_promises(load: LoadConfig, sidecars: int, traces: Path) -> None:
    requests = made(load, traces, sidecars=sidecars)
    assert [r.request_id for r in requests] == list(range(len(requests)))
    assert all(a.scheduled_at_s <= b.scheduled_at_s for a, b in itertools.pairwise(requests))
    assert all(0 <= r.scheduled_at_s < 30.0 for r in requests)
    assert all(r.scheduled_at_s == round(r.scheduled_at_s, 6) for r in requests)
    assert all(PROMPT.low <= r.prompt_tokens <= PROMPT.high for r in requests)
    assert all(OUTPUT.low <= r.output_tokens <= OUTPUT.high for r in requests)
    assert {r.sidecar for r in requests} == set(range(sidecars))
    assert len({r.prompt_seed for r in requests}) == len(requests)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.kind)
def test_the_same_seed_gives_the_same_file_and_another_another(
    load: LoadConfig, traces: Path
) -> None:
    first = made(load, traces)
    assert made(load, traces) == first
    assert request_hash(made(load, traces)) == request_hash(first)
    assert request_hash(made(load, traces, seed=1)) != request_hash(first)


@pytest.mark.parametrize("load", [POISSON, BURSTS, ONOFF], ids=lambda load: load.kind)
def test_another_sidecar_leaves_the_streams_of_the_first_as_they_are(load: LoadConfig) -> None:
    def of_first(sidecars: int) -> list[tuple[float, int, int, int]]:
        return [
            (r.scheduled_at_s, r.prompt_tokens, r.output_tokens, r.prompt_seed)
            for r in made(load, HERE, sidecars=sidecars)
            if r.sidecar == 0
        ]

    assert of_first(3) == of_first(1)


def test_sidecars_have_independent_streams() -> None:
    requests = made(POISSON, HERE, sidecars=2)
    times = [{r.scheduled_at_s for r in requests if r.sidecar == i} for i in (0, 1)]
    assert not times[0] & times[1]


def test_trace_rows_are_dealt_to_sidecars_without_loss(traces: Path) -> None:
    one, two = made(AZURE, traces), made(AZURE, traces, sidecars=2)
    assert [replace(r, sidecar=0) for r in two] == list(one)


def test_seeds_of_a_trace_share_no_request(traces: Path) -> None:
    """Prompt and output tokens unclipped name a row of the trace well enough."""
    wide = TokenRange(low=1, high=10_000)
    load = AZURE.model_copy(
        update={"token_scale": 1.0, "prompt_tokens_clip": wide, "output_tokens_clip": wide}
    )
    files = [
        [(r.prompt_tokens, r.output_tokens) for r in made(load, traces, seed=k)] for k in range(4)
    ]
    assert all(a != b for i, a in enumerate(files) for b in files[:i])
    _, slices = trace_slices(load, horizon_s=30.0, study_dir=traces)
    assert slices.windows == 114  # whole windows of 30 s in 3435.9 s
    assert len(slices.qualifying) >= 4


def test_tokens_of_a_trace_are_scaled_and_clipped(tmp_path: Path) -> None:
    rows = "".join(
        f"2025-06-01 12:00:0{i}.0000000,{context},{generated}\n"
        for i, (context, generated) in enumerate([(10, 100), (400, 200), (9000, 9000), (1, 1)])
    )
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    load = AZURE.model_copy(
        update={
            "path": "t.csv",
            "token_scale": 0.1,
            "slice": SliceRule(min_requests=1, max_requests=9, max_burst_requests=9),
        }
    )
    requests = make_requests(load, seed=0, horizon_s=3.0, sidecars=1, study_dir=tmp_path)
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(16, 10), (40, 20), (64, 24)]


def test_a_changed_trace_file_is_read_again(tmp_path: Path) -> None:
    load = AZURE.model_copy(
        update={
            "path": "t.csv",
            "slice": SliceRule(min_requests=1, max_requests=9, max_burst_requests=9),
        }
    )
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = [f"2025-06-01 12:00:0{i}.0000000,1,1\n" for i in range(9)]
    for count in (5, 9):
        (tmp_path / "t.csv").write_text(header + "".join(rows[:count]))
        requests = make_requests(
            load, seed=0, horizon_s=float(count - 1), sidecars=1, study_dir=tmp_path
        )
        assert len(requests) == count - 1


@given(
    index=st.integers(0, 5),
    field=st.sampled_from(
        ["request_id", "sidecar", "scheduled_at_s", "prompt_tokens", "output_tokens", "prompt_seed"]
    ),
)
def test_the_hash_changes_with_any_field_of_any_request(index: int, field: str) -> None:
    requests = list(made(POISSON, HERE)[:6])
    before = request_hash(requests)
    step = 1e-6 if field == "scheduled_at_s" else 1
    requests[index] = replace(requests[index], **{field: getattr(requests[index], field) + step})
    assert request_hash(requests) != before
    assert request_hash(requests[:-1]) != before


def test_the_hash_of_a_known_file_never_changes() -> None:
    """Golden: a changed hash makes every recorded run foreign."""
    request = Request(
        request_id=0,
        sidecar=0,
        scheduled_at_s=0.123456,
        prompt_tokens=16,
        output_tokens=24,
        prompt_seed=7,
    )
    assert (
        request_hash([request])
        == "446b8983bb14bda2ee5eaf3359addf611e54aa73546a25ba3302dee7030fd9f4"
    )


def test_json_and_parquet_give_the_requests_back_exactly(tmp_path: Path) -> None:
    requests = made(BURSTS, HERE)
    table = pa.Table.from_pylist([asdict(r) for r in requests])
    pq.write_table(table, tmp_path / "r.parquet")
    back = [Request(**row) for row in pq.read_table(tmp_path / "r.parquet").to_pylist()]
    assert tuple(back) == requests
    assert request_hash(back) == request_hash(requests)
    text = json.dumps([asdict(r) for r in requests])
    assert tuple(Request(**row) for row in json.loads(text)) == requests


def test_no_request_at_all_is_refused() -> None:
    empty = POISSON.model_copy(update={"rate_per_s": 1e-9})
    with pytest.raises(ValueError, match=r"kind 'poisson' makes no request in 30 s with seed 0"):
        made(empty, HERE)


def test_no_sidecar_is_refused() -> None:
    with pytest.raises(ValueError, match="sidecars=0"):
        made(POISSON, HERE, sidecars=0)


def test_a_missing_trace_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"AzureLLMInferenceTrace_code\.csv: cannot be read"):
        made(AZURE, tmp_path)


def test_a_request_longer_than_the_model_is_named() -> None:
    requests = made(POISSON, HERE)
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    check_requests(requests, max_model_len_tokens=longest)
    with pytest.raises(ValueError, match=rf"request \d+ at .* = {longest} tokens, the model holds"):
        check_requests(requests, max_model_len_tokens=longest - 1)


def test_a_closed_loop_makes_no_request_file() -> None:
    load = ClosedLoopConfig(kind="closed", users=4, prompt_tokens=PROMPT, output_tokens=OUTPUT)
    with pytest.raises(ValueError, match=r"load\.kind='closed': .* use it in a replay"):
        made(load, HERE)


def test_what_a_trace_config_does_not_use_leaves_no_trace_in_its_dump() -> None:
    """Else the hash of every study recorded before would change."""
    later = {"format", "columns", "failed", "dequantise_seed", "superpose", "rate_scale", "dataset"}
    assert not later & set(AZURE.model_dump(mode="json"))
    other = AZURE.model_copy(update={"rate_scale": 2.0, "failed": "drop"})
    dumped = other.model_dump(mode="json")
    assert (dumped["rate_scale"], dumped["failed"]) == (2.0, "drop")
    for load in (AZURE, other):
        assert TraceConfig.model_validate_json(load.model_dump_json()) == load


def test_superposition_and_rate_scale_add_requests(traces: Path) -> None:
    name = "AzureLLMInferenceTrace_code.csv"
    wide = AZURE.model_copy(
        update={"slice": SliceRule(min_requests=1, max_requests=9999, max_burst_requests=9999)}
    )
    one = made(wide, traces)
    twice = made(wide.model_copy(update={"superpose": (TraceSource(path=name),)}), traces)
    assert len(twice) == 2 * len(one)
    assert {r.scheduled_at_s for r in twice} == {r.scheduled_at_s for r in one}
    more = made(wide.model_copy(update={"rate_scale": 2.0}), traces)
    assert len(more) == pytest.approx(2 * len(one), abs=20)
    assert request_hash(more) != request_hash(twice)
    both = wide.model_copy(
        update={"superpose": (TraceSource(path=name),), "rate_scale": 2.0, "thin": 0.5}
    )
    trace, _ = trace_slices(both, horizon_s=30.0, study_dir=traces)
    read = "read 8819 row(s) as azure: a time without a zone, zone none stated (wall clock)"
    assert load_steps(both, trace, horizon_s=30.0) == (
        f"{name}: {read}",
        f"{name}: {read}",
        f"superposed {name}, {name}",
        "rate scale 2 (copies within 1 s) with seed 0",
        "thinned to 0.5 with seed 0",
        "cut into windows of 30 s from 0 s on; seed k takes the k-th that meets load.slice",
        "time scale 1",
        "tokens times 0.05, prompt in 16..64, output in 8..24",
    )
    assert trace.notes == ()


def test_a_trace_of_another_format_makes_requests(checkout: Path) -> None:
    folder = checkout / "tests/orchestrator/workload/traces"
    load = AZURE.model_copy(
        update={
            "path": "servegen_r1_chunk-48-trace.csv",
            "slice": SliceRule(min_requests=1, max_requests=9999, max_burst_requests=9999),
            "generate_for_s": 600.0,
        }
    )
    files = [made(load, folder, seed=seed) for seed in (0, 1)]
    assert all(len(f) > 20 for f in files)
    assert files[0] != files[1]


def test_more_requests_than_memory_holds_name_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 193 GiB")

    monkeypatch.setattr("orchestrator.workload.requests._streams", none_left)
    with pytest.raises(ValueError, match=r"load\.kind='poisson'.*193 GiB.*lower its rates"):
        make_requests(POISSON, seed=0, horizon_s=30.0, sidecars=1, study_dir=HERE)
