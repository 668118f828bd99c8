"""The Ray shell of a sidecar; when its process ends, however, the guard ends the server."""

from pathlib import Path

import ray

from actors.clock import ClockProbe, probe_clock
from actors.config import SidecarsConfig
from actors.serving.refresh import Refreshed
from actors.serving.sidecar import LOCAL_HOST, Sidecar, SidecarInfo


@ray.remote
class SidecarActor:
    """Receive, call, answer."""

    def __init__(self, sidecars: SidecarsConfig, sidecar: int, work_dir: str) -> None:
        self._sidecar = Sidecar(sidecars, sidecar, Path(work_dir), host=_host())

    def clock_probe(self) -> ClockProbe:
        return probe_clock()

    def start(self, weights: str | None = None) -> SidecarInfo:
        return self._sidecar.start(None if weights is None else Path(weights))

    def refresh(self, folder: str, round_: int, wait_s: float = 0.0) -> Refreshed:
        return self._sidecar.refresh(Path(folder), round_, wait_s=wait_s)

    def restart(self, folder: str, round_: int) -> Refreshed:
        return self._sidecar.restart(Path(folder), round_)

    def alive(self) -> str | None:
        return self._sidecar.alive()

    def wait_idle(self, timeout_s: float) -> None:
        self._sidecar.wait_idle(timeout_s)

    def mark_merge(self, slow: bool) -> None:
        self._sidecar.mark_merge(slow)

    def stop(self) -> None:
        self._sidecar.stop()


def _host() -> str:
    """The address that this cluster's other nodes can reach; never more open than needed."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return LOCAL_HOST
    return str(ray.util.get_node_ip_address())
