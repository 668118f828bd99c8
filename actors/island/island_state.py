"""All of an island on disk and back, to the bit: parameters, optimizers, data position, chance.

Two kinds of files: each island's own, and one with what is global, which the group's leader writes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.island.groups import Kept
from actors.island.island import Counters, Island
from actors.island.state_file import read_state, write_state
from actors.merge_messages import CheckpointFile

GLOBALS = "globals.safetensors"


def island_file(number: int) -> str:
    """Name of an island's own file."""
    return f"island-{number}.safetensors"


def save_island(island: Island, folder: Path, *, round_: int) -> CheckpointFile:
    """The island's own state; called at a step boundary. DiskFull leaves nothing behind."""
    run = island.run
    tensors: dict[str, Tensor] = {"local": run.flat.vector}
    tensors |= {f"inner.{name}": tensor for name, tensor in run.inner.tensors().items()}
    tensors |= {f"buffer.{name}": tensor for name, tensor in run.model.named_buffers()}
    tensors["chance.cpu"] = torch.get_rng_state()
    if run.flat.vector.is_cuda:
        tensors["chance.cuda"] = torch.cuda.get_rng_state(run.flat.vector.device)
    feedback = island.owed()
    if feedback is not None:
        tensors["feedback"] = feedback
    facts = {"seed": run.seed, "shards": list(run.shards), "counters": asdict(run.counters)}
    return write_state(
        folder / island_file(island.number),
        tensors,
        facts,
        halfway=lambda: island.reached_checkpoint(round_=round_),
    )


def save_globals(island: Island, folder: Path) -> CheckpointFile:
    """Global parameters and momentum, by one island for all."""
    state = island.global_state()
    tensors = {"anchor": state.anchor, "buffer": state.buffer}
    return write_state(folder / GLOBALS, tensors, {"island": island.number})


@torch.no_grad()
def load_island(
    island: Island, folder: Path, *, own: CheckpointFile, common: CheckpointFile
) -> str:
    """Stand where the files were written, after a reset with the same seed; the parameter hash.

    The group has to be formed next. TornFile when a file is not the one that was written.
    """
    run = island.run
    tensors, facts = read_state(folder / own.name, expected=own)
    globals_, _ = read_state(folder / common.name, expected=common)
    _check_facts(facts, seed=run.seed, shards=run.shards, path=folder / own.name)
    device = run.flat.vector.device
    run.flat.vector.copy_(tensors["local"])
    run.flat.to_model()
    run.inner.load(_under("inner.", tensors))
    buffers = dict(run.model.named_buffers())
    for name, tensor in _under("buffer.", tensors).items():
        buffers[name].copy_(tensor)
    with island.guard:
        run.counters = Counters(**facts["counters"])
        run.rows = []
    island.load_replicas(folder / own.name)
    torch.set_rng_state(tensors["chance.cpu"])
    if "chance.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["chance.cuda"], device)
    feedback = tensors.get("feedback")
    island.keep(
        Kept(
            anchor=globals_["anchor"].to(device),
            buffer=globals_["buffer"].to(device),
            feedback=None if feedback is None else feedback.to(device),
        )
    )
    return island.parameter_hash()


def load_optimizer(island: Island, folder: Path, *, own: CheckpointFile) -> None:
    """The inner optimizer alone as it was written; TornFile when it is not that file."""
    tensors, _ = read_state(folder / own.name, expected=own)
    island.run.inner.load(_under("inner.", tensors))
    island.load_replicas(folder / own.name)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _check_facts(facts: dict[str, Any], *, seed: int, shards: tuple[int, ...], path: Path) -> None:
    if (facts["seed"], tuple(facts["shards"])) != (seed, shards):
        raise ValueError(
            f"{path}: written with seed {facts['seed']} on shards {facts['shards']}, asked for are "
            f"seed {seed} on {list(shards)}; resume the run that wrote it"
        )
