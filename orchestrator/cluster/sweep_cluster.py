"""The cluster that a sweep runs on: RAY_ADDRESS's, else one of its own on this machine.

A driver that attaches from outside a job brings its code as ``working_dir``, its size checked
before the upload; a job has brought it already, an installed package stands on every node.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from orchestrator.cluster.address import check_address
from orchestrator.cluster.package_size import check_working_dir

STORE_BYTES = 256 * 1024**2  # of a local cluster: rows are small
_IN_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by `ray job submit`
_CHECKOUT = Path(__file__).resolve().parents[2]


@contextmanager
def connected(workers: int | None, *, say: Callable[[str], None]) -> Iterator[None]:
    """``workers``: CPUs of a cluster that is started here (None: all); ended where it was started.

    ValueError when the code is too large to upload; StageFailed when RAY_ADDRESS is dead.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "")
    check_address(address)
    if address in ("", "auto", "local"):
        ray.init(
            address="local",
            num_cpus=None if workers is None else min(workers, os.cpu_count() or 1),
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            namespace="lull",
            runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
        )
    else:
        ray.init(
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            namespace="lull",
            runtime_env=code_env(_CHECKOUT, say=say),
        )
    try:
        yield
    finally:
        ray.shutdown()


def python_path() -> str:
    """This code first, then what the driver was given."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(_CHECKOUT), *([given] if given else [])])


def code_env(checkout: Path, *, say: Callable[[str], None]) -> dict[str, str] | None:
    """The runtime environment with our code, or None where the nodes have it."""
    if os.environ.get(_IN_A_JOB) or not (checkout / "pyproject.toml").is_file():
        return None
    size_bytes = check_working_dir(checkout)
    say(f"uploading {size_bytes / 1024**2:.1f} MiB of code to the cluster")
    return {"working_dir": str(checkout)}
