"""The endpoint and its client: the same advice as in one process, no hang, no garbage."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from actors.clock import VirtualClock
from actors.coordinator.advice import ADVISOR_SILENT, AdviceRefused, AdvisorSilent, Report
from actors.coordinator.advisor_client import AdvisorClient, HttpTransport, Progress
from orchestrator.advisor.session import AdviceSession
from orchestrator.redecide import read_records, redecide
from tests.advising import LIMIT_S, advice, serving, train

PATIENT_S = 20.0


def call(url: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_S)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture
def url() -> Iterator[str]:
    with serving(AdviceSession(advice(), folder=None, clock=VirtualClock())) as url:
        yield url


def test_over_http_it_is_the_same_advice(tmp_path: Path) -> None:
    near, far = VirtualClock(), VirtualClock()
    session = AdviceSession(advice(), folder=tmp_path / "a", clock=far)
    here = train(
        AdviceSession(advice(), folder=None, clock=near), near, step_s=[0.5, 0.8], steps=70
    )
    with serving(session) as url:
        there = train(HttpTransport(url, timeout_s=PATIENT_S), far, step_s=[0.5, 0.8], steps=70)
        standing = HttpTransport(url, timeout_s=PATIENT_S).standing()
    session.finish()
    assert there == here == [[20, 40, 60]] * 2
    assert (standing.policy, standing.learners, standing.merges) == ("fixed_h", (0, 1), 3)
    assert (standing.last_merge_step, standing.blind, standing.problem) == (60, True, None)
    (record,) = read_records(tmp_path / "a")
    assert redecide(record).mismatches == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body: Invalid JSON"),
        (b"", "the body: Invalid JSON"),
        (b"[1]", "the body: Input should be"),
        (b'{"learner": 0, "step": 1}', "tokens: Field required"),
        (b'{"learner": 0, "step": -1, "tokens": 1}', "step: Input should be greater than or"),
        (b'{"learner": 0, "step": 1000000000000, "tokens": 1}', "step: Input should be less than"),
        (b'{"learner": 0, "step": "1", "tokens": 1}', "step: Input should be a valid integer"),
        (b'{"learner": 0, "step": 1.5, "tokens": 1}', "step: Input should be a valid integer"),
        (b'{"learner": 0, "step": 1, "tokens": 1, "los": 2}', "los: Extra inputs are not"),
        (b'{"learner": 0, "step": 1, "tokens": 1, "loss": NaN}', ": "),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_its_reason(
    url: str, body: bytes, said: str
) -> None:
    status, reply = call(url, "POST", "/v1/ready_to_merge", body)
    assert status == 400
    assert said in json.loads(reply)["error"]
    assert call(url, "GET", "/health")[0] == 200


def test_a_merged_that_cannot_be_read_is_refused_too(url: str) -> None:
    status, reply = call(url, "POST", "/v1/merged", b'{"learner": 0, "step": 1, "merges": -1}')
    assert status == 400
    assert "merges: Input should be greater" in json.loads(reply)["error"]
    good = b'{"learner": 0, "step": 1, "merges": 1, "seconds": 2.5}'
    assert call(url, "POST", "/v1/merged", good) == (200, b"{}")  # of one that is not known


def test_a_body_without_end_and_another_path_are_refused(url: str) -> None:
    assert call(url, "POST", "/v1/ready_to_merge", b" " * 20_000)[0] == 413
    assert call(url, "POST", "/v2/ready_to_merge", b"{}")[0] == 404
    assert call(url, "GET", "/v1/ready_to_merge")[0] == 405


def test_a_body_that_never_comes_is_given_up_and_the_others_are_served(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.advisor.http.READ_S", 0.05)
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as slow:
        slow.sendall(b"POST /v1/ready_to_merge HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        assert call(url, "GET", "/health")[0] == 200
        assert slow.recv(65536).startswith(b"HTTP/1.1 408")


def test_an_advice_that_has_ended_is_a_silent_one() -> None:
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    with serving(session) as url:
        transport = HttpTransport(url, timeout_s=PATIENT_S)
        assert not transport.ask(Report(learner=0, step=1, tokens=1)).merge
        session.finish()
        with pytest.raises(AdvisorSilent, match="answers status 503"):
            transport.ask(Report(learner=0, step=40, tokens=1))
        assert call(url, "POST", "/v1/merged", b'{"learner": 0, "step": 1, "merges": 1}')[0] == 200


def test_a_learner_that_cannot_be_placed_hears_why(url: str) -> None:
    transport = HttpTransport(url, timeout_s=PATIENT_S)
    for step in (1, 20):
        decision = transport.ask(Report(learner=0, step=step, tokens=1))
    assert decision.merge
    transport.ask(Report(learner=0, step=40, tokens=1, merges=1, last_merge_step=20))
    late = AdvisorClient(url, learner=4, own_h_steps=9, timeout_s=PATIENT_S)
    with pytest.raises(AdviceRefused, match=r"learner 4 reports step 3, .* merged at step 20"):
        late.ready_to_merge(3, Progress(tokens=1))


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def take_request(connection: socket.socket) -> None:
    """All of it: a connection closed on unread bytes is reset, and its answer lost."""
    file = connection.makefile("rb")
    length = 0
    while (line := file.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    file.read(length)
    file.close()


@contextmanager
def answering(*drops: bytes, every_s: float = 0.0) -> Iterator[str]:
    """Accepts connections and sends ``drops``, with a pause after each; then stays silent."""
    done = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def live() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # a client that has given up
                take_request(connection)
                for drop in drops:
                    connection.sendall(drop)
                    if done.wait(every_s):
                        return
                if not drops:
                    done.wait()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        done.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("drops", "every_s"),
    [
        ((), 0.0),  # accepts, and says nothing
        ((b"HTTP/1.1 200 OK\r\n", *(b"X: y\r\n" for _ in range(400))), 0.05),  # never to an end
    ],
)
def test_an_advisor_that_hangs_costs_its_time_limit_and_no_more(
    drops: tuple[bytes, ...], every_s: float
) -> None:
    with answering(*drops, every_s=every_s) as url:
        client = AdvisorClient(url, own_h_steps=3, timeout_s=0.3)
        began_s = time.monotonic()
        decision = client.ready_to_merge(1, Progress(tokens=1))
        assert time.monotonic() - began_s < 10.0
    assert (decision.merge, decision.advised, decision.reason) == (False, False, ADVISOR_SILENT)
    assert "no answer within 0.3 s" in str(decision.detail) or "timed out" in str(decision.detail)
    assert "merges at its own H of 3 steps: at step 3" in str(decision.detail)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "answers status 500"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", "answers status 404"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 6\r\n\r\n<html>", "answers status 400"),
        pytest.param(ok(b"[" * 60_000), "answers what is no MergeDecision", id="deep"),
        pytest.param(ok(b" " * 300_000), "does not answer: its answer is longer", id="long"),
        (ok(b"{}"), "answers what is no MergeDecision"),
        (ok(b"hello"), "answers what is no MergeDecision"),
        (ok(b"[]"), "answers what is no MergeDecision"),
        (ok(b"{}")[:-1], "does not answer"),
        (
            ok(b'{"merge": 1, "reason": "", "merge_at_step": null, "ask_at_step": -9, "round": 0}'),
            "answers what is no decision",
        ),
    ],
)
def test_what_is_no_advisor_is_taken_for_a_silent_one(reply: bytes, said: str) -> None:
    with answering(reply) as url, pytest.raises(AdvisorSilent, match=said):
        HttpTransport(url, timeout_s=PATIENT_S).ask(Report(learner=0, step=1, tokens=1))


def test_an_advisor_killed_in_the_middle_leaves_each_learner_at_its_own_h(
    tmp_path: Path,
) -> None:
    """Refused at once; when one stands there again it is asked and followed again."""
    config = advice(policy={"kind": "fixed_h", "h_steps": 10})
    session = AdviceSession(config, folder=tmp_path / "a", clock=VirtualClock())
    merged: dict[int, list[int]] = {0: [], 1: []}
    silent: set[int] = set()
    clients: list[AdvisorClient] = []

    def steps(first: int, last: int) -> None:
        for step in range(first, last + 1):
            for number, client in enumerate(clients):
                decision = client.ready_to_merge(step, Progress(tokens=8 * step))
                if decision:
                    merged[number].append(step)
                if not decision.advised:
                    silent.add(step)
                    assert "does not answer" in str(decision.detail)

    with serving(session) as url:
        for i in range(2):
            clients.append(AdvisorClient(url, learner=i, own_h_steps=25, timeout_s=PATIENT_S))
        steps(1, 22)
    steps(23, 52)
    assert merged == {0: [10, 20, 45], 1: [10, 20, 45]}
    assert min(silent) == 25  # the first step at which an answer was needed
    port = int(url.rpartition(":")[2])
    new = AdviceSession(config, folder=None, clock=VirtualClock())
    with serving(new, port=port):
        steps(53, 80)
    # The new one goes on from the merge that they made alone.
    assert merged == {learner: [10, 20, 45, 55, 65, 75] for learner in (0, 1)}
    assert max(silent) < 60
    assert new.standing().learners == (0, 1)


@pytest.mark.parametrize(
    ("bad", "said"), [({"url": "127.0.0.1:1"}, "no http://"), ({"timeout_s": 0.0}, "not above 0")]
)
def test_a_client_that_cannot_work_says_so_at_once(bad: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HttpTransport(**{"url": "http://127.0.0.1:1", **bad})  # type: ignore[arg-type]
