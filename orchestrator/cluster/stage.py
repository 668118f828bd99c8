"""The actors of one study on Ray: brought up once, reset between arms, taken down whatever comes.

Everything is owned by the driver (no detached actor), so that nothing outlives it.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.brief import brief
from actors.clock import clock_offset_s, probe_clock
from actors.config import ISLANDS, VllmConfig
from actors.coordinator.coordinator_actor import CoordinatorActor
from actors.deadlines import ANSWER, START
from actors.island.island_actor import IslandActor
from actors.load.client_actor import LoadActor
from actors.merge_messages import SERVED, ServeExport
from actors.serving.engine import ServerFailed
from actors.serving.sidecar import SidecarInfo
from actors.serving.sidecar_actor import SidecarActor
from actors.telemetry.sampler_actor import TelemetryActor
from orchestrator.cluster.address import check_address
from orchestrator.cluster.limits import islands_limit_s
from orchestrator.cluster.nodes import cluster_nodes
from orchestrator.cluster.placement import plan_placement, why_infeasible
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed

Say = Callable[[str], None]
RPC_TIMEOUT_S = ANSWER.limit_s


def connect() -> None:
    """Attach to RAY_ADDRESS or a cluster that runs here; else start a local one."""
    if ray.is_initialized():
        return
    check_address(os.environ.get("RAY_ADDRESS", ""))
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        namespace="lull",
    )


def disconnect() -> None:
    """Leave the cluster, or end the local one."""
    ray.shutdown()


class Stage:
    """Actors and placement group of a study."""

    def __init__(self, study: StudyConfig, work_dir: Path, *, say: Say) -> None:
        self._study = study
        self._work_dir = work_dir
        self._say = say
        self._placement = plan_placement(study)
        self._export = _export_of(study)
        self._weights: str | None = None  # folder that the servers start on
        self._group: PlacementGroup | None = None
        self.islands: list[Any] = []
        self.sidecars: list[Any] = []
        self.infos: list[SidecarInfo] = []
        self.load: Any = None
        self.telemetry: Any = None
        self.coordinator: Any = None
        self.offsets_s: dict[str, float] = {}
        self.warnings: dict[str, str] = {}  # priorities that the kernel refused

    def start(self) -> None:
        """Placement group, servers, islands, load, telemetry, coordinator: ready to run arms."""
        connect()
        problem = why_infeasible(self._placement, cluster_nodes())
        if problem is not None:
            raise ValueError(f"resources: {problem}")
        limit_s = self._study.resources.ready_timeout_s
        self._group = placement_group(
            list(self._placement.bundles), strategy=self._placement.strategy
        )
        if not self._group.wait(limit_s):
            raise StageFailed(
                f"placement group of {len(self._placement.bundles)} bundles not ready within "
                f"{limit_s:g} s: other jobs hold the resources; wait for them, or raise "
                "resources.ready_timeout_s"
            )
        if self._export is None:
            self._start_sidecars()
            self.start_islands()
        else:  # the servers begin with what the islands begin with
            self.start_islands()
            self._start_sidecars()
        self._start_clients()

    def _start_sidecars(self) -> None:
        config = self._study.sidecars
        self.sidecars = [
            SidecarActor.options(  # type: ignore[attr-defined]
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                scheduling_strategy=self._in_bundle(self._placement.sidecar_bundle(i)),
            ).remote(config, i, str(self._work_dir))
            for i in range(config.count)
        ]
        self._say(f"starting {config.count} serving sidecar(s): {config.engine.kind}")
        weights = self._start_weights()
        self.infos = _unwrapped([s.start.remote(weights) for s in self.sidecars])
        for info in self.infos:
            self._say(
                f"sidecar {info.sidecar} ready: {info.engine} {info.engine_version} at {info.url}"
            )

    def _start_weights(self) -> str | None:
        """Folder of exported weights that the servers start on; None: a model of their own."""
        if self._export is not None and self._weights is None:
            folder, seed = str((self._work_dir / SERVED).resolve()), self._study.seeds[0]
            told: list[str] = _unwrapped(
                [self.islands[0].export_start.remote(folder, seed)], timeout_s=START.limit_s
            )
            self._weights = told[0]
        return self._weights

    def start_islands(self) -> None:
        """New island actors; also after one was lost."""
        config = self._study.islands
        self.islands = [
            IslandActor.options(  # type: ignore[attr-defined]
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                scheduling_strategy=self._in_bundle(self._placement.island_bundle(i)),
            ).remote(config, self._study.merge, i, self._export)
            for i in range(config.count)
        ]
        probes = [actor.clock_probe.remote() for actor in self.islands]
        _unwrapped(probes, timeout_s=islands_limit_s(self._study))
        self._say(islands_are_there(config.count))

    def _start_clients(self) -> None:
        beside = self._in_bundle(self._placement.sidecar_bundle(0))
        urls = [info.url for info in self.infos]
        slots = [info.max_num_seqs for info in self.infos]
        self.load = LoadActor.options(  # type: ignore[attr-defined]
            num_cpus=self._study.client.num_cpus, scheduling_strategy=beside
        ).remote(self._study.client)
        self.telemetry = TelemetryActor.options(  # type: ignore[attr-defined]
            num_cpus=self._study.telemetry.num_cpus, scheduling_strategy=beside
        ).remote(self._study.telemetry, urls, slots)
        self.connect_coordinator()

    def connect_coordinator(self) -> None:
        """A coordinator that holds today's handles, and the clock offsets of all actors."""
        if self.coordinator is not None:
            ray.kill(self.coordinator)
        self.coordinator = CoordinatorActor.options(num_cpus=0).remote(  # type: ignore[attr-defined]
            islands=self.islands,
            sidecars=self.sidecars,
            load=self.load,
            telemetry=self.telemetry,
            islands_config=self._study.islands,
            merge_config=self._study.merge,
            refresh=self._study.sidecars.refresh,
        )
        named = {"load": self.load, "telemetry": self.telemetry, "coordinator": self.coordinator}
        named |= {f"island-{i}": actor for i, actor in enumerate(self.islands)}
        named |= {f"sidecar-{i}": actor for i, actor in enumerate(self.sidecars)}
        self.offsets_s = {name: self._offset_s(actor) for name, actor in named.items()}
        instruments = {name: named[name] for name in ("load", "telemetry", "coordinator")}
        told = ray.get([a.warning.remote() for a in instruments.values()], timeout=RPC_TIMEOUT_S)
        self.warnings = {
            name: line for name, line in zip(instruments, told, strict=True) if line is not None
        }

    def _offset_s(self, actor: Any) -> float:
        before = probe_clock()
        (remote,) = _unwrapped([actor.clock_probe.remote()], timeout_s=START.limit_s)
        return clock_offset_s(before, remote, probe_clock())

    def restart(self, lost: Collection[str]) -> None:
        """End what is left of the islands, the servers or both, and start them anew."""
        if "island" in lost:
            for actor in self.islands:
                ray.kill(actor)
            self.start_islands()
        if "server" in lost:
            self._stop_sidecars()
            for actor in (self.load, self.telemetry):
                if actor is not None:
                    ray.kill(actor)
            self._start_sidecars()
            self._start_clients()
        else:
            self.connect_coordinator()

    def _stop_sidecars(self) -> None:
        for actor in self.sidecars:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.stop.remote(), timeout=RPC_TIMEOUT_S)
            ray.kill(actor)
        self.sidecars = []

    def stop(self) -> None:
        """End everything, gently first; never raises for what is already gone."""
        for actor in self.islands:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.shutdown.remote(), timeout=RPC_TIMEOUT_S)
        if self.telemetry is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self.telemetry.stop.remote(), timeout=RPC_TIMEOUT_S)
        self._stop_sidecars()
        for actor in (*self.islands, self.load, self.telemetry, self.coordinator):
            if actor is not None:
                ray.kill(actor)
        self.islands, self.load, self.telemetry, self.coordinator = [], None, None, None
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _in_bundle(self, index: int) -> PlacementGroupSchedulingStrategy:
        assert self._group is not None
        return PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )


def _export_of(study: StudyConfig) -> ServeExport | None:
    """Where the servers serve the islands' model; None where they have one of their own."""
    engine, refresh = study.sidecars.engine, study.sidecars.refresh
    serves_islands = isinstance(engine, VllmConfig) and engine.model == ISLANDS
    if refresh.kind == "none" and not serves_islands:
        return None
    return ServeExport(
        every_merges=None if refresh.kind == "none" else refresh.every_merges,
        max_len_tokens=engine.max_model_len_tokens,
        keep_rounds=refresh.keep_rounds,
    )


def _unwrapped(calls: list[Any], *, timeout_s: float | None = None) -> Any:
    """Answers of remote calls; the actor's own exception instead of Ray's wrapping traceback."""
    try:
        return ray.get(calls, timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ValueError | ServerFailed):
            raise cause from None
        raise StageFailed(f"an actor failed to start: {brief(error)}") from error
    except ray.exceptions.RayError as error:
        raise StageFailed(f"an actor did not start: {brief(error)}") from error


def islands_are_there(number: int) -> str:
    return f"{number} island{' is' if number == 1 else 's are'} there"
