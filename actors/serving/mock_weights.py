"""The mock's weights: the folder that it says it serves, and vLLM's routes to change it in place.

In place of a model it has the folder's probe: it answers it as the exported weights would.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from actors.serving.completions import Refused
from actors.serving.exported import Exported, NotExported, Probe, read_exported
from actors.serving.mock_batch import Batch
from actors.serving.mock_faults import Reload


async def read_json(request: web.Request) -> object:
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise Refused(f"JSON decode error: {error}", param="body") from error


class MockWeights:
    """What is served, whether it still can be, and whether steps are made at all."""

    def __init__(self, serving: Exported | None, batch: Batch) -> None:
        self._serving = serving
        self._batch = batch
        self._version = "default"  # as vLLM says before any update
        self._broken: str | None = None
        self.unpaused = asyncio.Event()
        self.unpaused.set()
        self.fault: Reload | None = None

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/collective_rpc", self._collective_rpc)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/update_weight_version", self._update_weight_version)
        app.router.add_get("/weight_info", self._weight_info)

    def check_whole(self) -> None:
        """Refuse what asks a model whose weights are half loaded."""
        if self._broken is not None:
            raise Refused(f"EngineCore encountered an issue: {self._broken}", status=500)

    def top_logprobs(self, prompt: tuple[int, ...], count: int) -> dict[str, float] | None:
        """The likeliest tokens after the probe's prompt; the mock knows of no other prompt."""
        probe = None if self._serving is None else self._serving.probe
        if probe is None or prompt != probe.prompt:
            return None
        likeliest = sorted(range(len(probe.logprobs)), key=lambda t: -probe.logprobs[t])[:count]
        return {f"token_id:{token}": probe.logprobs[token] for token in likeliest}

    async def _is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": not self.unpaused.is_set()})

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode != "keep":
            return web.json_response({"error": f"the mock cannot pause to {mode}"}, status=400)
        self.unpaused.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _request: web.Request) -> web.Response:
        self.unpaused.set()
        return web.json_response({"status": "resumed"})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        try:
            body = await read_json(request)
            if not isinstance(body, dict) or body.get("method") != "reload_weights":
                raise Refused("the mock's workers know reload_weights alone", status=500)
            await self._reload(Path(str(body.get("kwargs", {}).get("weights_path"))))
        except Refused as refusal:
            return web.json_response(refusal.body(), status=refusal.status)
        return web.json_response({"results": [None]})

    async def _reload(self, folder: Path) -> None:
        """As in vLLM a failure in the middle leaves a model that is neither the old nor the new."""
        how = None if self.fault is None else self.fault.how
        if how == "fail":
            raise self._break("told to fail")
        if how == "die":
            sys.stderr.write("mock server: told to die while it reloads\n")
            sys.stderr.flush()
            os._exit(3)
        if how == "hang":
            await asyncio.Event().wait()
        if how == "ignore":
            return
        try:
            new = read_exported(folder)
        except NotExported as error:
            raise self._break(str(error)) from error
        self._serving = _garbled(new) if how == "garble" else new

    def _break(self, why: str) -> Refused:
        self._broken = why
        text = f"Call to collective_rpc method failed: Worker failed with error '{why}'"
        return Refused(text, status=500)

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        if request.query.get("reset_running_requests") == "true":
            self._batch.preempt()
        return web.json_response({"success": True})

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self._version = str(body["new_version"])
        return web.json_response({"success": True, "new_version": self._version})

    async def _weight_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._version})


def _garbled(exported: Exported) -> Exported:
    """Weights of which a part did not arrive: the right answers in the wrong places."""
    logprobs = exported.probe.logprobs
    turned = Probe(prompt=exported.probe.prompt, logprobs=(*logprobs[1:], logprobs[0]))
    return replace(exported, probe=turned)
