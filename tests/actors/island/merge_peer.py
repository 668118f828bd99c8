"""One island in a process of its own, told what to do by JSON lines (see peers.py).

python merge_peer.py, then on stdin {"do": NAME, ...}; each is answered by one line on stdout:
{"ok": VALUE} or {"error": TYPE, "message": TEXT}.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from actors.clock import MonotonicClock
from actors.config import IslandsConfig, MergeConfig
from actors.island.island import GlobalState, Island
from actors.merge_messages import Formation, RoundPlan, SegmentName


def named(raw: dict[str, Any] | None) -> SegmentName | None:
    return None if raw is None else SegmentName(**raw)


def formation_of(raw: dict[str, Any]) -> Formation:
    return Formation(
        **(
            raw
            | {
                "members": tuple(raw["members"]),
                "segments": tuple(SegmentName(**one) for one in raw["segments"]),
                "banks": named(raw["banks"]),
            }
        )
    )


def plan_of(raw: dict[str, Any]) -> RoundPlan:
    return RoundPlan(**(raw | {"weights": tuple(raw["weights"])}))


class Peer:
    """Its methods are the commands."""

    def __init__(self) -> None:
        self._island: Island | None = None

    @property
    def island(self) -> Island:
        assert self._island is not None
        return self._island

    def make(self, *, config: str, merge: str, island: int, seed: int) -> str:
        """Another island in this process, and its run."""
        if self._island is not None:
            self._island.disconnect()
        torch.manual_seed(island)  # islands whose global generators differ must still start alike
        self._island = Island(
            IslandsConfig.model_validate_json(config),
            MergeConfig.model_validate_json(merge),
            island,
            clock=MonotonicClock(),
        )
        return self._island.reset(seed=seed, folder=None)

    def introduce(self) -> dict[str, Any]:
        return asdict(self.island.introduce(address="127.0.0.1"))

    def can_share_with(self, *, segments: list[dict[str, Any]]) -> bool:
        return self.island.can_share_with(tuple(SegmentName(**one) for one in segments))

    def form(self, *, formation: dict[str, Any]) -> SegmentName | None:
        return self.island.form(formation_of(formation))

    def steps(self, *, count: int) -> int:
        for _ in range(count):
            self.island.step()
        return self.island.steps

    def ready(self, *, round_: int, fragment: int) -> Any:
        return self.island.ready(round_=round_, fragment=fragment, wait_s=0.0)

    def reduce(self, *, plan: dict[str, Any]) -> Any:
        return self.island.reduce(plan_of(plan))

    def commit(self, *, plan: dict[str, Any]) -> str:
        self.island.commit(plan_of(plan), end_s=0.0)
        return self.island.merged_hash()

    def abort(self, *, round_: int) -> None:
        self.island.abort(round_=round_)

    def parameter_hash(self) -> str:
        return self.island.parameter_hash()

    def give(self, *, path: str) -> int:
        """Global state and local vector into a file."""
        state = self.island.global_state()
        tensors = {"anchor": state.anchor, "buffer": state.buffer}
        save_file(tensors | {"local": self.island.run.flat.vector.clone()}, path)
        return state.rounds_applied

    def adopt(self, *, path: str, rounds_applied: int, keep_steps: bool, cursor: int) -> None:
        given = load_file(Path(path))
        state = GlobalState(
            anchor=given["anchor"], buffer=given["buffer"], rounds_applied=rounds_applied
        )
        self.island.adopt(state, keep_steps=keep_steps, cursor=cursor, at_s=0.0)

    def close(self) -> None:
        if self._island is not None:
            self._island.disconnect()


def answered(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - told to the test, which knows what it expects
        return {"error": type(error).__name__, "message": str(error)}
    return {"ok": asdict(value) if is_dataclass(value) and not isinstance(value, type) else value}


def main() -> None:
    torch.set_num_threads(1)
    peer = Peer()
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")

        def call(name: str = name, command: dict[str, Any] = command) -> Any:
            return getattr(peer, name)(**command)

        sys.stdout.write(json.dumps(answered(call)) + "\n")
        sys.stdout.flush()
    peer.close()


if __name__ == "__main__":
    main()
