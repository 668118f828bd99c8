"""New weights for a server that runs: in place through vLLM's development routes, then proved.

What those routes do and where they leave a server in the dark stands in README.md beside this file.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from actors.clock import Clock, MonotonicClock
from actors.events import SidecarRefreshed
from actors.serving.engine import ServerFailed
from actors.serving.exported import Exported, NotExported, Probe, read_exported
from actors.serving.http import Unreachable, ask_json, get_json, post_json

TOP_TOKENS = 20  # what a vLLM server answers at most, unless started with another --max-logprobs
# On a CPU two implementations of one model are 1e-5 apart; on a GPU vLLM's attention multiplies
# float32 as TF32, of which 11 bits count.
FLOAT32_TOLERANCE_NATS = 0.02
NARROW_TOLERANCE_NATS = 0.25  # bfloat16 keeps 8 bits: a logit of 16 is off by 0.06 when stored
LET_GO_S = 5.0  # for the resume after a pause that was not answered
LEAST_LEFT_S = 0.05  # a call that begins at the deadline still gets a chance


class RefreshRefused(RuntimeError):
    """The server serves the old weights on; says why it did not take the new ones."""


class RefreshFailed(ServerFailed):
    """Nobody knows what the server serves now, or whether it does: it must be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far the server's answer to the probe is from what the exported weights give themselves.

    In nats, the largest over the ``tokens`` log-probabilities that the server gave.
    """

    tokens: int
    error_nats: float
    change_nats: float | None  # from what the weights before would have given; None: none before
    tolerance_nats: float

    @property
    def conclusive(self) -> bool:
        """False where the weights before would have passed too: the probe cannot tell them."""
        return self.change_nats is None or self.change_nats > self.tolerance_nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """A server that was seen to serve the weights of ``round``. Times: this host's monotonic."""

    round: int
    kind: Literal["in_place", "restart"]
    started_at_s: float
    ended_at_s: float  # when the proof was there
    outage_s: float  # in which no token was made: paused, or not there at all
    weights_bytes: int
    proof: Proof


def refreshed_event(
    done: Refreshed, *, event_id: int, cause_id: int, sidecar: int, zero_monotonic_s: float
) -> SidecarRefreshed:
    """For the record; ``zero_monotonic_s``: the run's zero on the sidecar's own clock."""
    return SidecarRefreshed(
        event_id=event_id,
        cause_id=cause_id,
        round=done.round,
        at_s=done.ended_at_s - zero_monotonic_s,
        sidecar=sidecar,
        kind=done.kind,
        started_at_s=done.started_at_s - zero_monotonic_s,
        outage_s=done.outage_s,
        weights_bytes=done.weights_bytes,
        error_nats=done.proof.error_nats,
        change_nats=done.proof.change_nats,
        tolerance_nats=done.proof.tolerance_nats,
    )


def tolerance_nats(dtype: str) -> float:
    """For a server that computes in ``dtype`` (vLLM's --dtype; 'auto' narrows float32 weights)."""
    return FLOAT32_TOLERANCE_NATS if dtype in ("float32", "float") else NARROW_TOLERANCE_NATS


def distance_nats(answer: dict[int, float], probe: Probe) -> float:
    """Largest difference over the tokens of ``answer``; infinite for what the probe cannot hold."""
    known = len(probe.logprobs)
    gaps = [
        abs(value - probe.logprobs[token]) if 0 <= token < known else math.inf
        for token, value in answer.items()
    ]
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=math.inf)


class WeightRefresher:
    """Refreshes one server in place; ``serving`` is the folder that it was started on."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        dtype: str,
        serving: Exported,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._model = model  # as requests name it
        self._tolerance_nats = tolerance_nats(dtype)
        self._serving = serving
        self._clock = MonotonicClock() if clock is None else clock
        self._unknown: str | None = None  # why nobody knows what is served

    @property
    def serving(self) -> Exported:
        """The weights that were proved last."""
        return self._serving

    def refresh(self, folder: Path, *, round_: int, timeout_s: float) -> Refreshed:
        """Serve the weights of merge ``round_``, which stand in ``folder``; seconds for all of it.

        RefreshRefused: the old ones are served on. RefreshFailed: the server must be restarted.
        """
        if self._unknown is not None:
            raise RefreshFailed(f"restart the server first: {self._unknown}")
        started_at_s = self._clock.now_s()
        until_s = started_at_s + timeout_s
        new = acceptable(folder, round_=round_, serving=self._serving)
        self.check_offer(timeout_s=self._left_s(until_s))
        outage_s = self._replace(new, until_s=until_s)
        proof = self._prove_new(new, timeout_s=self._left_s(until_s))
        self._serving = new
        return Refreshed(
            round=new.round,
            kind="in_place",
            started_at_s=started_at_s,
            ended_at_s=self._clock.now_s(),
            outage_s=outage_s,
            weights_bytes=new.weights_bytes,
            proof=proof,
        )

    def check_offer(self, *, timeout_s: float) -> None:
        """RefreshRefused where the server has no such routes, or is paused by somebody else."""
        try:
            answer = get_json(f"{self._url}/is_paused", timeout_s=timeout_s)
        except Unreachable as error:
            if error.status == 404:
                raise RefreshRefused(
                    f"{self._url} offers no refresh in place: vLLM has the routes for it only when "
                    "started with VLLM_SERVER_DEV_MODE=1; sidecars.refresh.kind=in_place sets it "
                    "for a server of ours unless engine.env does not, else use kind=restart"
                ) from error
            raise RefreshRefused(f"no refresh is possible: {error}") from error
        if answer != {"is_paused": False}:
            raise RefreshRefused(
                f"{self._url} is paused already, or says so otherwise than expected: {answer!r}; "
                "is somebody else refreshing it?"
            )

    def prove_start(self, *, timeout_s: float, before: Exported | None = None) -> Proof:
        """That a server which has just come up serves its folder; RefreshFailed if not.

        ``before``: the weights that were served there until now.
        """
        answer = self._answer(self._serving.probe, timeout_s=timeout_s)
        proof = self._proof(answer, self._serving, before=before)
        if proof.error_nats > proof.tolerance_nats:
            raise self._failed(
                f"{self._url} does not serve {self._serving.folder}: {_off(proof)}; does "
                "engine.extra_args change the weights (quantization) or the log-probabilities?"
            )
        return proof

    def _replace(self, new: Exported, *, until_s: float) -> float:
        """Seconds from the pause to the resume.

        No timeout goes to collective_rpc: vLLM would stop waiting for its worker's answer and take
        it for that of the next call.
        """
        paused_at_s = self._clock.now_s()
        self._pause(until_s=until_s)
        try:
            self._post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(new.folder)}},
                until_s=until_s,
            )
            # requests in flight: the keys and values of the old weights are computed anew
            self._post("/reset_prefix_cache?reset_running_requests=true", {}, until_s=until_s)
            self._post("/update_weight_version", {"new_version": label(new)}, until_s=until_s)
            self._post("/resume", {}, until_s=until_s)
        except Unreachable as error:
            raise self._failed(f"refresh to {label(new)} broke off: {error}") from error
        return self._clock.now_s() - paused_at_s

    def _pause(self, *, until_s: float) -> None:
        try:
            self._post("/pause?mode=keep&clear_cache=false", {}, until_s=until_s)
        except Unreachable as error:
            try:
                post_json(f"{self._url}/resume", {}, timeout_s=LET_GO_S)
            except Unreachable as also:
                raise self._failed(f"neither paused nor resumed: {error}; {also}") from error
            raise RefreshRefused(f"the server did not pause for a refresh: {error}") from error

    def _prove_new(self, new: Exported, *, timeout_s: float) -> Proof:
        answer = self._answer(new.probe, timeout_s=timeout_s)
        proof = self._proof(answer, new, before=self._serving)
        if proof.error_nats <= proof.tolerance_nats:
            return proof
        assert proof.change_nats is not None
        if proof.change_nats <= proof.tolerance_nats:
            raise RefreshRefused(
                f"{self._url} said that it had reloaded, but still serves {label(self._serving)}: "
                f"from {label(new)} it is {_off(proof)}"
            )
        raise self._failed(
            f"{self._url} serves neither {label(new)} nor {label(self._serving)}: {_off(proof)}"
        )

    def _proof(self, answer: dict[int, float], new: Exported, *, before: Exported | None) -> Proof:
        return Proof(
            tokens=len(answer),
            error_nats=distance_nats(answer, new.probe),
            change_nats=None if before is None else distance_nats(answer, before.probe),
            tolerance_nats=self._tolerance_nats,
        )

    def _answer(self, probe: Probe, *, timeout_s: float) -> dict[int, float]:
        """The server's log-probabilities of the likeliest next tokens, by token id."""
        body = {
            "model": self._model,
            "prompt": list(probe.prompt),
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": TOP_TOKENS,
            "return_tokens_as_token_ids": True,
        }
        try:
            answer = ask_json(f"{self._url}/v1/completions", body, timeout_s=timeout_s)
        except Unreachable as error:
            raise self._failed(f"the probe was not answered: {error}") from error
        found = self._read(answer)
        wanted = min(TOP_TOKENS, len(probe.logprobs))
        if len(found) < wanted:  # so few may agree by chance
            raise self._failed(
                f"{self._url} gives {len(found)} log-probabilities where {wanted} were asked for; "
                "does engine.extra_args limit them (--max-logprobs)?"
            )
        return found

    def _read(self, answer: Any) -> dict[int, float]:
        try:
            top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return {int(token.removeprefix("token_id:")): float(top[token]) for token in top}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            said = str(answer)[:160]
            raise self._failed(f"{self._url} gives no log-probabilities: {said}") from error

    def _post(self, path: str, body: dict[str, Any], *, until_s: float) -> None:
        post_json(f"{self._url}{path}", body, timeout_s=self._left_s(until_s))

    def _left_s(self, until_s: float) -> float:
        return max(LEAST_LEFT_S, until_s - self._clock.now_s())

    def _failed(self, why: str) -> RefreshFailed:
        self._unknown = why
        return RefreshFailed(why)


def label(exported: Exported) -> str:
    """What the server calls these weights (GET /weight_info of a vLLM in development mode)."""
    return exported.folder.name


def acceptable(folder: Path, *, round_: int, serving: Exported) -> Exported:
    """The weights in ``folder``, of the round and the very architecture; else RefreshRefused.

    A server that fails while it loads is lost, so all that can be seen beforehand is looked at.
    """
    try:
        new = read_exported(folder)
    except NotExported as error:
        raise RefreshRefused(str(error)) from error
    if new.round != round_:
        raise RefreshRefused(f"{folder} holds the weights of round {new.round}, not of {round_}")
    keys = sorted(new.config.keys() | serving.config.keys())
    if differing := [key for key in keys if new.config.get(key) != serving.config.get(key)]:
        raise RefreshRefused(
            f"{folder}/config.json is of another model than the server's: it differs in "
            f"{', '.join(differing)}"
        )
    names = sorted(new.tensors.keys() | serving.tensors.keys())
    if unlike := [name for name in names if new.tensors.get(name) != serving.tensors.get(name)]:
        raise RefreshRefused(
            f"{folder}: {len(unlike)} tensors differ in type or shape from the server's, or are "
            f"not on both sides; the first is {unlike[0]}"
        )
    return new


def _off(proof: Proof) -> str:
    return f"off by {proof.error_nats:.3g} nats (at most {proof.tolerance_nats:g} are expected)"
