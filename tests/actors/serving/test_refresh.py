"""Refreshing a mock in place: what is proved, what is refused, and what leaves it unknown."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from actors.config import MockConfig, SidecarsConfig
from actors.events import from_record, to_record
from actors.serving.exported import Exported, read_exported
from actors.serving.http import get_json
from actors.serving.llama_folder import WEIGHTS
from actors.serving.mock_server import MockServer
from actors.serving.refresh import (
    Proof,
    Refreshed,
    RefreshFailed,
    RefreshRefused,
    WeightRefresher,
    distance_nats,
    refreshed_event,
    tolerance_nats,
)
from tests.actors.serving.exported_folder import SHAPE, export

Client = TestClient[Any, Any]
Scenario = Callable[[Client, WeightRefresher], Awaitable[None]]
CONFIG = MockConfig(
    kind="mock",
    max_model_len_tokens=512,
    prefill_s_per_token=0.0,
    decode_step_s=0.001,
    decode_step_per_seq_s=0.0,
)
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds 0 and 1, which no test changes."""
    made = tmp_path_factory.mktemp("served")
    export(made, 0)
    export(made, 1)
    return made


def serve(app: web.Application, serving: Exported, scenario: Scenario) -> None:
    """Run a scenario against a server in this process."""

    async def run() -> None:
        async with TestClient(TestServer(app)) as client:
            url = str(client.make_url("/")).rstrip("/")
            refresher = WeightRefresher(url, model="mock", dtype="float32", serving=serving)
            await scenario(client, refresher)

    asyncio.run(run())


def talk(folder: Path, scenario: Scenario, *, dev_mode: bool = True) -> None:
    serving = read_exported(folder / "round-00000")
    serve(MockServer(CONFIG, weights=serving, dev_mode=dev_mode).app(), serving, scenario)


async def refresh(
    refresher: WeightRefresher, path: Path, round_: int, *, timeout_s: float = LIMIT_S
) -> Refreshed:
    return await asyncio.to_thread(refresher.refresh, path, round_=round_, timeout_s=timeout_s)


async def proved(refresher: WeightRefresher) -> Proof:
    return await asyncio.to_thread(refresher.prove_start, timeout_s=LIMIT_S)


async def fetched(client: Client, path: str) -> Any:
    return await asyncio.to_thread(get_json, str(client.make_url(path)))


async def tell(client: Client, path: str, **what: Any) -> None:
    async with client.post(path, json=what) as response:
        assert response.status == 200, await response.text()


def test_the_server_serves_the_new_weights_and_goes_on(folder: Path) -> None:
    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        assert (await proved(refresher)).change_nats is None
        done = await refresh(refresher, folder / "round-00001", 1)
        assert (done.round, done.kind) == (1, "in_place")
        assert 0 < done.outage_s <= done.ended_at_s - done.started_at_s
        assert done.weights_bytes == (folder / "round-00001" / WEIGHTS).stat().st_size
        assert done.proof.tokens == 20
        assert done.proof.error_nats < 1e-9
        assert done.proof.change_nats is not None
        assert done.proof.change_nats > 0.1
        assert done.proof.conclusive
        assert refresher.serving.round == 1
        assert await fetched(client, "/weight_info") == {"weight_version": "round-00001"}
        assert await fetched(client, "/is_paused") == {"is_paused": False}
        back = await refresh(refresher, folder / "round-00000", 0)
        assert back.proof.conclusive

    talk(folder, scenario)


def test_a_request_in_flight_waits_and_loses_no_token(folder: Path) -> None:
    body = {"prompt": [40, 41], "max_tokens": 300, "min_tokens": 300, "stream": True}

    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        async with client.post("/v1/completions", json=body) as response:
            first = await response.content.readuntil(b"\n\n")
            await refresh(refresher, folder / "round-00001", 1)
            rest = await response.content.read()
        events = (first + rest).decode().strip().split("\n\n")
        assert len(events) == 301
        assert events[-1] == "data: [DONE]"

    talk(folder, scenario)


def test_while_paused_no_token_is_made(folder: Path) -> None:
    waits = 'vllm:num_requests_waiting{engine="0",model_name="mock"} 1.0'

    async def scenario(client: Client, _: WeightRefresher) -> None:
        async def ask() -> int:
            one = {"prompt": [40], "max_tokens": 1}
            async with client.post("/v1/completions", json=one) as response:
                return response.status

        async def metrics() -> str:
            async with client.get("/metrics") as response:
                return await response.text()

        await tell(client, "/pause?mode=keep")
        asked = asyncio.create_task(ask())
        while waits not in await metrics():
            await asyncio.sleep(0)
        done, _pending = await asyncio.wait([asked], timeout=0.1)
        assert not done
        await tell(client, "/resume")
        assert await asked == 200

    talk(folder, scenario)


def test_a_server_without_the_routes_says_what_it_lacks(folder: Path) -> None:
    async def scenario(_: Client, refresher: WeightRefresher) -> None:
        with pytest.raises(RefreshRefused, match="VLLM_SERVER_DEV_MODE=1"):
            await refresh(refresher, folder / "round-00001", 1)

    talk(folder, scenario, dev_mode=False)


def another_shape(folder: Path) -> Path:
    return export(folder / "other", 1, shape=replace(SHAPE, layers=2))


def half_written(folder: Path) -> Path:
    half = export(folder / "half", 1)
    (half / WEIGHTS).write_bytes(b"\0")
    return half


@pytest.mark.parametrize(
    ("make", "round_", "why"),
    [
        (half_written, 1, "the folder is not whole"),
        (lambda folder: folder / "round-00001", 2, "of round 1, not of 2"),
        (lambda folder: folder / "round-00009", 9, "on this node"),
        (another_shape, 1, "it differs in num_hidden_layers"),
    ],
    ids=["half written", "another round", "not there", "another architecture"],
)
def test_weights_that_would_break_the_server_never_reach_it(
    folder: Path, make: Callable[[Path], Path], round_: int, why: str
) -> None:
    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        with pytest.raises(RefreshRefused, match=why):
            await refresh(refresher, make(folder), round_)
        assert refresher.serving.round == 0
        assert (await proved(refresher)).error_nats < 1e-9
        assert await fetched(client, "/is_paused") == {"is_paused": False}

    talk(folder, scenario)


@pytest.mark.parametrize(
    ("how", "limit_s", "why"),
    [
        ("fail", LIMIT_S, "broke off: .*Worker failed with error"),
        ("hang", 0.5, "broke off: .*timed out"),
        ("garble", LIMIT_S, "serves neither round-00001 nor round-00000"),
    ],
)
def test_a_failure_in_the_middle_leaves_the_server_unknown(
    folder: Path, how: str, limit_s: float, why: str
) -> None:
    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        await tell(client, "/mock/fault", kind="reload", how=how)
        with pytest.raises(RefreshFailed, match=why):
            await refresh(refresher, folder / "round-00001", 1, timeout_s=limit_s)
        with pytest.raises(RefreshFailed, match="restart the server first"):
            await refresh(refresher, folder / "round-00001", 1)
        paused = await fetched(client, "/is_paused")
        assert paused == {"is_paused": how != "garble"}  # nobody is served from broken weights

    talk(folder, scenario)


def test_an_answer_that_is_not_true_is_found_out(folder: Path) -> None:
    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        await tell(client, "/mock/fault", kind="reload", how="ignore")
        with pytest.raises(RefreshRefused, match="still serves round-00000"):
            await refresh(refresher, folder / "round-00001", 1)
        await tell(client, "/mock/fault", kind="clear")
        assert (await refresh(refresher, folder / "round-00001", 1)).proof.conclusive

    talk(folder, scenario)


def test_weights_that_answer_alike_prove_nothing_and_it_is_said(folder: Path) -> None:
    export(folder, 2, seed=1)  # round 0 was drawn with it

    async def scenario(_: Client, refresher: WeightRefresher) -> None:
        done = await refresh(refresher, folder / "round-00002", 2)
        assert not done.proof.conclusive

    talk(folder, scenario)


def test_a_server_that_serves_something_else_is_no_start(folder: Path) -> None:
    other = read_exported(folder / "round-00001")

    async def scenario(_: Client, refresher: WeightRefresher) -> None:
        with pytest.raises(RefreshFailed, match=r"does not serve .*round-00000: off by"):
            await proved(refresher)

    app = MockServer(CONFIG, weights=other, dev_mode=True).app()
    serve(app, read_exported(folder / "round-00000"), scenario)


def test_a_few_tokens_that_agree_prove_nothing(folder: Path) -> None:
    serving = read_exported(folder / "round-00000")
    few = {f"token_id:{token}": serving.probe.logprobs[token] for token in range(3)}

    async def complete(_request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"logprobs": {"top_logprobs": [few]}}]})

    async def scenario(_: Client, refresher: WeightRefresher) -> None:
        with pytest.raises(RefreshFailed, match="gives 3 log-probabilities where 20 were asked"):
            await proved(refresher)

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    serve(app, serving, scenario)


def test_a_server_that_somebody_else_paused_is_left_alone(folder: Path) -> None:
    async def scenario(client: Client, refresher: WeightRefresher) -> None:
        await tell(client, "/pause?mode=keep")
        with pytest.raises(RefreshRefused, match="paused already"):
            await refresh(refresher, folder / "round-00001", 1)
        assert await fetched(client, "/is_paused") == {"is_paused": True}

    talk(folder, scenario)


@pytest.mark.parametrize(
    ("resumes", "error", "why"),
    [
        (200, RefreshRefused, "did not pause for a refresh"),
        (500, RefreshFailed, "neither paused nor resumed"),
    ],
)
def test_a_pause_that_fails_is_taken_back(
    folder: Path, resumes: int, error: type[RuntimeError], why: str
) -> None:
    async def is_paused(_request: web.Request) -> web.Response:
        return web.json_response({"is_paused": False})

    async def pause(_request: web.Request) -> web.Response:
        return web.json_response({"error": "Failed to pause generation"}, status=500)

    async def resume(_request: web.Request) -> web.Response:
        return web.json_response({}, status=resumes)

    app = web.Application()
    app.router.add_get("/is_paused", is_paused)
    app.router.add_post("/pause", pause)
    app.router.add_post("/resume", resume)

    async def scenario(_: Client, refresher: WeightRefresher) -> None:
        with pytest.raises(error, match=why):
            await refresh(refresher, folder / "round-00001", 1)

    serve(app, read_exported(folder / "round-00000"), scenario)


def test_a_server_that_is_gone_is_not_refreshed(folder: Path) -> None:
    serving = read_exported(folder / "round-00000")
    gone = WeightRefresher("http://127.0.0.1:9", model="mock", dtype="float32", serving=serving)
    with pytest.raises(RefreshRefused, match=r"no refresh is possible: .* does not answer"):
        gone.refresh(folder / "round-00001", round_=1, timeout_s=LIMIT_S)


def test_an_answer_is_as_far_off_as_its_worst_token(folder: Path) -> None:
    probe = read_exported(folder / "round-00000").probe
    exact = {token: probe.logprobs[token] for token in (3, 4, 5)}
    assert distance_nats(exact, probe) == 0
    assert distance_nats(exact | {4: probe.logprobs[4] + 0.5}, probe) == pytest.approx(0.5)
    nonsense: tuple[dict[int, float], ...] = ({}, exact | {260: -1.0}, exact | {4: float("nan")})
    for answer in nonsense:
        assert distance_nats(answer, probe) == float("inf")


def test_narrow_types_may_be_further_off() -> None:
    assert tolerance_nats("float32") < tolerance_nats("bfloat16") == tolerance_nats("auto")


def test_a_refresh_becomes_an_event_on_the_run_clock() -> None:
    proof = Proof(tokens=20, error_nats=1e-6, change_nats=0.3, tolerance_nats=1e-3)
    done = Refreshed(
        round=4,
        kind="in_place",
        started_at_s=1010.0,
        ended_at_s=1010.5,
        outage_s=0.25,
        weights_bytes=99,
        proof=proof,
    )
    event = refreshed_event(done, event_id=7, cause_id=5, sidecar=1, zero_monotonic_s=1000.0)
    assert (event.started_at_s, event.at_s, event.outage_s) == (10.0, 10.5, 0.25)
    assert (event.round, event.sidecar, event.kind, event.cause_id) == (4, 1, "in_place", 5)
    assert event.change_nats == 0.3
    assert from_record(json.loads(json.dumps(to_record(event)))) == event


ENGINES = {
    "mock": '{"kind": "mock"}',
    "islands": '{"kind": "vllm", "model": "islands", "max_model_len_tokens": 9, "max_num_seqs": 1}',
    "tiny": '{"kind": "vllm", "model": "tiny", "max_model_len_tokens": 9, "max_num_seqs": 1}',
    "attach": '{"kind": "attach", "url": "http://a", "max_model_len_tokens": 9, "max_num_seqs": 1}',
}


@pytest.mark.parametrize("kind", ["in_place", "restart"])
@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("mock", None),
        ("islands", None),
        ("tiny", r"the islands train another model; give engine\.model: islands"),
        ("attach", "a server that is not ours keeps its weights"),
    ],
)
def test_only_a_server_of_the_islands_model_that_is_ours_is_refreshed(
    engine: str, why: str | None, kind: str
) -> None:
    text = f'{{"count": 1, "engine": {ENGINES[engine]}, "refresh": {{"kind": "{kind}"}}}}'
    if why is None:
        assert SidecarsConfig.model_validate_json(text).refresh.every_merges == 1
        return
    with pytest.raises(ValidationError, match=why):
        SidecarsConfig.model_validate_json(text)


def test_without_a_word_nothing_is_refreshed() -> None:
    text = f'{{"count": 1, "engine": {ENGINES["attach"]}}}'
    assert SidecarsConfig.model_validate_json(text).refresh.kind == "none"
