"""Batches of seeds on a Ray cluster: a bounded number under way, each row computed as anywhere.

RAY_ADDRESS names the cluster; else a local one of its own is started for the replay and ended with
it. A study's trace has to lie at the same path on every node.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import ray

from actors.brief import brief
from orchestrator.cluster.address import check_address
from orchestrator.endings import StageFailed
from orchestrator.replay.scale import Batch, ReplayJob, replay_batch
from orchestrator.signals import handlers_kept

AHEAD = 2  # batches under way or waiting for each core: what the driver's memory is bounded by
STORE_BYTES = 256 * 1024**2  # of a local cluster: tables of some hundred rows are small


@ray.remote(num_cpus=1)
def _replay(job: ReplayJob, seeds: tuple[int, ...]) -> pa.Table:
    return replay_batch(job, seeds)


def spread_on_ray(
    job: ReplayJob, batches: Sequence[Batch], *, workers: int | None
) -> Iterator[tuple[int, pa.Table]]:
    """Finished batches as they come, in any order. ``workers`` None: all cores there are."""
    with _cluster(workers) as cores:
        shared = ray.put(job)
        waiting = iter(batches)
        under_way: dict[ray.ObjectRef, int] = {}
        while True:
            for number, seeds in waiting:
                under_way[_replay.remote(shared, seeds)] = number
                if len(under_way) >= AHEAD * (workers or cores):
                    break
            if not under_way:
                return
            (ready, *_), _ = ray.wait(list(under_way), num_returns=1)
            yield under_way.pop(ready), _result(ready)


@contextmanager
def _cluster(workers: int | None) -> Iterator[int]:
    """Connected, and how many cores there are; ended where it was started here."""
    if ray.is_initialized():
        yield _cores()
        return
    address = os.environ.get("RAY_ADDRESS", "")
    check_address(address)
    with handlers_kept():
        if address in ("", "local"):
            ray.init(
                address="local",
                num_cpus=None if workers is None else min(workers, os.cpu_count() or 1),
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                namespace="lull",
            )
        else:
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, namespace="lull")
    try:
        yield _cores()
    finally:
        ray.shutdown()


def _cores() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _result(ref: ray.ObjectRef) -> pa.Table:
    """A bad study's own error, not Ray's wrapping of it."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ValueError):
            raise cause from None
        raise StageFailed(f"a replay failed on the cluster: {brief(error)}") from error
    except ray.exceptions.RayError as error:
        raise StageFailed(f"a replay was lost on the cluster: {brief(error)}") from error
