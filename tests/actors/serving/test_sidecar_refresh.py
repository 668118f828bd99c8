"""A sidecar that takes the weights of merges, in place and by restart, with a mock of its own."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.config import SidecarsConfig
from actors.serving.engine import ServerFailed
from actors.serving.http import Unreachable, get_json, post_json
from actors.serving.llama_folder import WEIGHTS
from actors.serving.refresh import RefreshFailed, RefreshRefused
from actors.serving.sidecar import Sidecar
from tests.actors.serving.exported_folder import export

pytestmark = pytest.mark.slow  # whole processes, which start and end in their own time


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Sidecar]]:
    made: list[Sidecar] = []

    def build(kind: str) -> Sidecar:
        raw = {"count": 1, "engine": {"kind": "mock"}, "refresh": {"kind": kind}}
        config = SidecarsConfig.model_validate_json(json.dumps(raw))
        made.append(Sidecar(config, 0, tmp_path / "work"))
        return made[-1]

    yield build
    for sidecar in made:
        sidecar.stop()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [export(tmp_path / "served", round_) for round_ in range(3)]


def test_in_place_and_after_a_death_in_the_middle_by_a_restart(
    make: Callable[[str], Sidecar], folders: list[Path]
) -> None:
    sidecar = make("in_place")
    with pytest.raises(ValueError, match="has to be started on exported weights"):
        sidecar.start()
    with pytest.raises(ServerFailed, match="not started on exported weights"):
        sidecar.refresh(folders[1], 1)
    url = sidecar.start(folders[0]).url
    done = sidecar.refresh(folders[1], 1)
    assert (done.kind, done.round) == ("in_place", 1)
    assert done.proof.conclusive
    post_json(f"{url}/mock/fault", {"kind": "reload", "how": "die"})
    with pytest.raises(RefreshFailed, match=r"(?s)sidecar 0: .*broke off.*told to die while it"):
        sidecar.refresh(folders[2], 2)
    done = sidecar.restart(folders[2], 2)
    assert (done.kind, done.round) == ("restart", 2)
    assert 0 < done.outage_s <= done.ended_at_s - done.started_at_s
    assert sidecar.alive() is None
    assert get_json(f"{url}/is_paused") == {"is_paused": False}  # where clients look for it
    assert sidecar.refresh(folders[1], 1).proof.conclusive


def test_by_restart_alone_and_only_on_a_whole_folder(
    make: Callable[[str], Sidecar], folders: list[Path]
) -> None:
    sidecar = make("restart")
    before = sidecar.start(folders[0])
    with pytest.raises(Unreachable, match="404"):
        get_json(f"{before.url}/is_paused")  # no development routes where none are needed
    (folders[2] / WEIGHTS).write_bytes(b"half")
    with pytest.raises(RefreshRefused, match="not whole"):
        sidecar.refresh(folders[2], 2)
    assert sidecar.alive() is None
    done = sidecar.refresh(folders[1], 1)
    assert (done.kind, done.round) == ("restart", 1)
    assert done.proof.error_nats <= done.proof.tolerance_nats < (done.proof.change_nats or 0.0)
    assert get_json(f"{before.url}/v1/models")["data"][0]["id"] == before.model


def test_a_folder_may_be_on_its_way(
    make: Callable[[str], Sidecar], folders: list[Path], tmp_path: Path
) -> None:
    sidecar = make("in_place")
    sidecar.start(folders[0])
    with pytest.raises(RefreshRefused, match=r"sidecar 0: no .*round-00007 .* within 0 s"):
        sidecar.refresh(tmp_path / "served" / "round-00007", 7)
    exporting = threading.Thread(target=export, args=(tmp_path / "served", 7))
    exporting.start()
    done = sidecar.refresh(tmp_path / "served" / "round-00007", 7, wait_s=20.0)
    exporting.join()
    assert done.round == 7


def test_weights_that_are_not_whole_start_nothing(
    make: Callable[[str], Sidecar], folders: list[Path], tmp_path: Path
) -> None:
    (folders[0] / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"sidecar 0 cannot serve: .*model\.safetensors: missing"):
        make("in_place").start(folders[0])
    assert not (tmp_path / "work").exists()
