"""One more process of an island: the lead's commands in as JSON lines, one line of answer to each.

It ends when its lead does. Rank r of R takes batch number cursor * R + r of the island's shards.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from actors.config import IslandsConfig
from actors.island.burner import Commands, ParentGone
from actors.island.data.dataset import open_data
from actors.island.flat import FlatParameters
from actors.island.gradients import ReplicaGroup
from actors.island.inner import InnerOptimizer
from actors.island.language_model import LanguageModel
from actors.island.model import build_model
from actors.island.windows import on_device
from policies.streams import stream


class Replica:
    """Trains as its lead does, on other batches."""

    def __init__(
        self, config: IslandsConfig, *, island: int, rank: int, port: int, timeout_s: float
    ) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._island = island
        self._rank = rank
        device = f"cuda:{rank}" if config.device == "cuda" else "cpu"
        self._device = torch.device(device)
        self._data = open_data(
            config.data,
            islands=config.shards or config.count,
            seq_len_tokens=config.seq_len_tokens,
        )
        self._group = ReplicaGroup(
            rank=rank,
            size=config.replicas,
            port=port,
            device=self._device,
            timeout_s=timeout_s,
        )
        self._model: LanguageModel
        self._flat: FlatParameters
        self._inner: InnerOptimizer
        self._seed = 0
        self._shards: tuple[int, ...] = ()

    def reset(self, *, seed: int, shards: list[int]) -> None:
        self._seed, self._shards = seed, tuple(shards)
        self._model = build_model(
            self._config.model, seed=seed, max_len_tokens=self._config.seq_len_tokens
        ).to(self._device)
        self._flat = FlatParameters(
            self._model, make=lambda numbers: torch.zeros(numbers, device=self._device)
        )
        self._inner = InnerOptimizer(self._flat, self._config.inner)
        chance = stream(seed, "dropout", self._island, self._rank)
        torch.manual_seed(int(chance.integers(2**63)))

    def step(self, *, cursor: int, tokens: int) -> None:
        batches = [
            self._data.shard(number).batch(
                seed=self._seed,
                cursor=cursor * self._config.replicas + self._rank,
                batch_size=self._config.batch_size,
            )
            for number in self._shards
        ]
        window, documents = on_device(batches, self._device)
        loss = self._model.loss(window, documents)
        loss.backward()
        self._group.average(self._flat.parameters, loss)
        self._inner.apply(tokens=tokens)

    def receive(self) -> None:
        self._group.send(self._flat.vector)
        self._flat.to_model()

    def load(self, *, path: str) -> None:
        tensors: dict[str, Tensor] = load_file(Path(path))
        prefix = "inner."
        self._inner.load(
            {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        )


def main() -> None:
    lead_pid, config, island, rank, port, timeout_s = sys.argv[1:]
    commands = Commands(parent_pid=int(lead_pid))
    replica = Replica(
        IslandsConfig.model_validate_json(config),
        island=int(island),
        rank=int(rank),
        port=int(port),
        timeout_s=float(timeout_s),
    )
    _answer({})
    try:
        while True:
            command: dict[str, Any] = json.loads(commands.next_line())
            do = command.pop("do")
            try:
                getattr(replica, do)(**command)
            except (RuntimeError, ValueError, OSError) as error:
                _answer({"error": f"{do}: {error}"})
            else:
                _answer({})
    except ParentGone:
        os._exit(0)


def _answer(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
