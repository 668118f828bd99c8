"""One island's vectors and merger, without a model to train; commands in and answers out, in JSON.

Started by bench_merge.py, which says when each phase begins: all peers do the same at once.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from actors.clock import probe_clock
from actors.config import FillConfig, IslandsConfig, MergeConfig, OuterConfig
from actors.island.comm import free_port
from actors.island.flat import FlatParameters
from actors.island.groups import Group, Memory
from actors.merge_messages import Formation, RoundPlan, SegmentName
from orchestrator.study import load_study

MATRIX = 2048  # columns of a parameter matrix
TILE = 1 << 20  # numbers of noise, again and again


class Numbers(nn.Module):
    """So many numbers, in matrices like those of a model."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        rows = [4096] * (numbers // (MATRIX * 4096))
        rest = numbers - sum(rows) * MATRIX
        self.parts = nn.ParameterList(
            [nn.Parameter(torch.zeros(r, MATRIX)) for r in rows]
            + ([nn.Parameter(torch.zeros(rest))] if rest else [])
        )


class Peer:
    def __init__(self, island: int, count: int, numbers: int, quickstart: str) -> None:
        torch.set_num_threads(1)
        self.island, self.count = island, count
        study = load_study(Path(quickstart))
        self.islands: IslandsConfig = study.islands.model_copy(
            update={"count": count, "outer": OuterConfig()}
        )
        self.merge = MergeConfig(window_s=60.0, fill=FillConfig(kind="none"), timeout_s=120.0)
        self.memory = Memory(self.merge, device=torch.device("cpu"), label=f"bench-{island}")
        self.flat = FlatParameters(Numbers(numbers), make=self.memory.vector)
        self.flat.vector.normal_(generator=torch.Generator().manual_seed(0))  # the same on all
        self.group: Group | None = None
        self.plan: RoundPlan | None = None

    def introduce(self) -> dict[str, Any]:
        name = self.memory.name
        return {
            "segment": None if name is None else [name.pid, name.fd, name.token, name.numbers],
            "port": free_port("127.0.0.1"),
            "host": probe_clock().boot_id,
        }

    def form(
        self,
        transport: str,
        codec: str,
        fragments: int,
        epoch: int,
        segments: list[list[Any]],
        banks: list[Any] | None,
        port: int,
    ) -> dict[str, Any]:
        if self.group is not None:
            self.group.close()
            self.group = None
        self.merge = self.merge.model_copy(update={"codec": codec, "fragments": fragments})
        formation = Formation(
            epoch=epoch,
            members=tuple(range(self.count)),
            transport=transport,  # type: ignore[arg-type]
            segments=tuple(_name(s) for s in segments),
            banks=None if banks is None else _name(banks),
            master_addr="127.0.0.1",
            master_port=port,
            join_timeout_s=60.0,
        )
        self.group = Group.form(
            formation,
            island=self.island,
            config=self.islands,
            merge=self.merge,
            flat=self.flat,
            memory=self.memory,
        )
        self.flat.vector.normal_(generator=torch.Generator().manual_seed(0))  # the same on all
        self.group.merger.begin(self.flat)
        own = self.group.banks_name
        return {"banks": None if own is None else [own.pid, own.fd, own.token, own.numbers]}

    def drift(self, round_: int) -> dict[str, Any]:
        """Stands for inner steps: the islands are apart when they merge, each by its own noise."""
        draw = torch.Generator().manual_seed(1000 * round_ + self.island)
        noise = 0.001 * torch.randn(TILE, generator=draw)
        for part in self.flat.vector.split(TILE):
            part.add_(noise[: part.numel()])
        return {}

    def reduce(self, round_: int, fragment: int) -> dict[str, Any]:
        assert self.group is not None
        self.plan = RoundPlan(
            round=round_,
            epoch=self.group.formation.epoch,
            weights=tuple(1.0 / self.count for _ in range(self.count)),
            fragment=fragment,
        )
        work = self.group.merger.reduce(self.plan)
        return {
            "bytes": work.bytes_reduced,
            "codec_s": work.codec_s,
            "codec_error": work.codec_error,
        }

    def commit(self) -> dict[str, Any]:
        assert self.group is not None
        assert self.plan is not None
        self.group.merger.commit(self.plan, mixing=0.0)
        return {"sum": float(self.flat.vector[:: max(1, self.flat.numbers // 1000)].sum())}

    def copy(self) -> dict[str, Any]:
        """The yardstick of memory: as many bytes from one place to another."""
        spare = torch.empty_like(self.flat.vector)
        spare.copy_(self.flat.vector)  # pages are there
        began_s = time.perf_counter()
        spare.copy_(self.flat.vector)
        return {"seconds": time.perf_counter() - began_s}

    def gloo(self) -> dict[str, Any]:
        """The yardstick of the network library: one all-reduce of the whole vector."""
        spare = self.flat.vector.clone()
        dist.all_reduce(spare)
        began_s = time.perf_counter()
        dist.all_reduce(spare)
        return {"seconds": time.perf_counter() - began_s}

    def close(self) -> dict[str, Any]:
        if self.group is not None:
            self.group.close()
        return {}


def _name(parts: list[Any]) -> SegmentName:
    pid, fd, token, numbers = parts
    return SegmentName(pid=pid, fd=fd, token=token, numbers=numbers)


def main() -> None:
    peer = Peer(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201
    for line in sys.stdin:
        call, *args = json.loads(line)
        print(json.dumps(getattr(peer, call)(*args)), flush=True)  # noqa: T201
        if call == "close":
            return


if __name__ == "__main__":
    main()
