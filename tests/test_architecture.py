"""The import rules: direction of the rooms, homes of the heavy packages, no cycles.

The rules are functions of a folder, so that planted violations show that they can fail.
"""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOMS = ("policies", "actors", "orchestrator", "experiments")
HOMES = {
    "ray": ("actors/*_actor.py", "orchestrator/live.py", "orchestrator/cluster/*"),
    "torch": ("actors/island/*",),
    "transformers": ("actors/island/*",),
    "vllm": ("actors/serving/vllm_engine.py",),
    "mlflow": ("orchestrator/tracking*.py",),
}
# Compiled loops are few and apart: one module a room, bit-equal to a plain one beside it, so that
# all else stays readable and a wrong bit has one place to come from.
KERNELS = {"orchestrator": "orchestrator/replay/kernel.py"}  # policies: one module of any name
POLICIES_MAY_IMPORT = {"numpy", "pydantic", "policies"}
BLAS = {
    *("dot", "matmul", "vdot", "inner", "tensordot", "convolve", "correlate", "corrcoef", "cov"),
    *("polyfit", "multi_dot"),
}
LIGHT = (
    "policies.config",
    "actors.config",
    "actors.events",
    "orchestrator.config",
    "orchestrator.doctor",
    "orchestrator.cli",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name; ``from a import b`` is a.b."""

    name: str
    line: int
    at_load: bool  # runs when the module is loaded: neither in a function nor for types only


def imports_of(node: ast.AST, *, at_load: bool = True) -> Iterator[Import]:
    """Every import below ``node``, those by constant name through importlib too."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(name=alias.name, line=child.lineno, at_load=at_load)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                for alias in names:
                    yield Import(name=f"{base}.{alias.name}", line=child.lineno, at_load=at_load)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name=name, line=child.lineno, at_load=at_load)
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from imports_of(child, at_load=at_load and not deferred and not for_types)


@cache
def scan(root: Path) -> dict[Path, list[Import]]:
    """Imports of every file in the rooms under ``root``, by path relative to it."""
    files = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    return {path.relative_to(root): list(imports_of(ast.parse(path.read_text()))) for path in files}


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def broken_rules(root: Path) -> list[str]:
    """One line for each import that stands where it must not."""
    broken = []
    files = scan(root)
    for path, imports in files.items():
        if path.parts[0] == "experiments" and not is_command(root, path):
            broken.append(
                f"{path}: experiments hold no importable Python but a command of their own"
            )
        if path.name == "__init__.py" and imports:
            broken.append(f"{path}: an __init__.py imports nothing")
        broken += [f"{path}:{i.line}: {why}" for i in imports for why in broken_by(path, i)]
    kernels = [p for p, found in files.items() if p.parts[0] == "policies" and uses(found, "numba")]
    if len(kernels) > 1:
        broken.append(f"numba stands in one kernel module of policies, not in {kernels}")
    return broken


def is_command(root: Path, path: Path) -> bool:
    """Part of an `experiments/NAME` that is run as `python -m experiments.NAME`."""
    return len(path.parts) == 3 and (root / path).with_name("__main__.py").exists()


def uses(imports: list[Import], package: str) -> bool:
    return any(i.name.split(".")[0] == package for i in imports)


def broken_by(path: Path, found: Import) -> Iterator[str]:
    """Why this import must not stand in this file."""
    room, top = path.parts[0], found.name.split(".")[0]
    if not top:
        yield f"relative import of {found.name}"
    if top in ROOMS and ROOMS.index(top) > ROOMS.index(room):
        yield f"{room} imports {found.name}, which is to its right"
    if top in HOMES and not any(fnmatch(path.as_posix(), home) for home in HOMES[top]):
        yield f"imports {found.name}; {top} lives in {', '.join(HOMES[top])}"
    if room == top == "experiments" and found.name.split(".")[1:2] != [path.parts[1]]:
        yield f"one experiment imports another: {found.name}"
    if top == "numba" and room != "policies" and path.as_posix() != KERNELS.get(room):
        yield f"imports {found.name}; {room} compiles in {KERNELS.get(room, 'no module')}"
    if room == "policies" and top not in POLICIES_MAY_IMPORT | {"numba"} | sys.stdlib_module_names:
        yield f"policies import {found.name}"


def cycle(root: Path) -> list[str]:
    """Modules that load each other in a ring; empty when there is none."""
    files = scan(root)
    modules = {module_name(path) for path in files}
    graph: dict[str, set[str]] = {}
    for path, imports in files.items():
        names = {i.name for i in imports if i.at_load}
        loaded = names | {name.rpartition(".")[0] for name in names}
        graph[module_name(path)] = (loaded & modules) - {module_name(path)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_rooms_of_this_checkout_keep_the_import_rules(checkout: Path) -> None:
    assert broken_rules(checkout) == []


def test_no_modules_load_each_other_in_a_ring(checkout: Path) -> None:
    assert cycle(checkout) == []


def test_the_scan_reaches_every_room_and_follows_real_imports(checkout: Path) -> None:
    files = scan(checkout)
    assert {path.parts[0] for path in files} >= {"policies", "actors", "orchestrator"}
    names = {i.name for i in files[Path("orchestrator/config.py")]}
    assert "actors.config.IslandsConfig" in names


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("policies/a.py", "import ray", "imports ray; ray lives in"),
        ("policies/a.py", "from scipy import stats", "policies import scipy.stats"),
        ("policies/a.py", "def f():\n    import torch.nn as nn", "imports torch.nn"),
        ("policies/a.py", "from actors.clock import Clock", "actors.clock.Clock, which is to its"),
        ("actors/a.py", "if TYPE_CHECKING:\n    import orchestrator.x", "which is to its right"),
        ("actors/a.py", "import ray.util", "imports ray.util"),
        ("actors/load/a_actor.py", "import torch", "imports torch"),
        ("actors/serving/a.py", "import transformers", "imports transformers"),
        ("actors/serving/a.py", "class A:\n    import vllm", "imports vllm"),
        ("orchestrator/a.py", "import_module('mlflow')", "imports mlflow"),
        ("orchestrator/a.py", "importlib.import_module('ray.tune')", "imports ray.tune"),
        ("orchestrator/a.py", "from . import b", "relative import"),
        ("orchestrator/doctor.py", "import ray", "imports ray"),
        ("orchestrator/replay/plant.py", "import numba", "compiles in orchestrator/replay/kernel"),
        ("actors/a.py", "from numba import njit", "actors compiles in no module"),
        ("orchestrator/live_too.py", "import ray", "imports ray"),
        ("orchestrator/__init__.py", "from orchestrator.live import run", "imports nothing"),
        ("experiments/a.py", "", "no importable Python"),
        ("experiments/a/b.py", "", "no importable Python"),
        ("experiments/a/__main__.py", "import experiments.b.c", "imports another"),
        ("orchestrator/a.py", "import experiments.a.b", "which is to its right"),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, path: str, text: str, expected: str) -> None:
    found = broken_rules(plant(tmp_path, {path: text}))
    assert len(found) >= 1
    assert any(path in line and expected in line for line in found)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("policies/a.py", "import math\nimport numpy as np\nfrom policies.units import Steps"),
        ("policies/kernel.py", "import numba"),
        ("orchestrator/replay/kernel.py", "import numba"),
        ("actors/island/model.py", "import torch"),
        ("actors/island/island_actor.py", "import ray\nimport torch"),
        ("actors/serving/vllm_engine.py", "import vllm"),
        ("orchestrator/live.py", "import ray"),
        ("experiments/a/__main__.py", "from experiments.a.b import c\nfrom orchestrator import d"),
        ("orchestrator/cluster/placement.py", "import ray"),
        ("orchestrator/tracking.py", "def f():\n    import mlflow"),
        ("orchestrator/tracking_runs.py", "def f():\n    import mlflow"),
    ],
)
def test_a_package_in_its_home_is_let_pass(tmp_path: Path, path: str, text: str) -> None:
    assert broken_rules(plant(tmp_path, {path: text})) == []


def test_a_second_numba_module_in_policies_is_caught(tmp_path: Path) -> None:
    root = plant(tmp_path, {"policies/a.py": "import numba", "policies/b.py": "import numba"})
    assert [line for line in broken_rules(root) if "one kernel module" in line]


def test_a_planted_ring_is_caught(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "actors/a.py": "from actors.b import B",
            "actors/b.py": "from actors import c",
            "actors/c.py": "import actors.a",
        },
    )
    assert set(cycle(root)) == {"actors.a", "actors.b", "actors.c"}


@pytest.mark.parametrize(
    "back", ["def f():\n    import actors.a", "if TYPE_CHECKING:\n    from actors.a import A"]
)
def test_an_import_that_does_not_run_at_load_makes_no_ring(tmp_path: Path, back: str) -> None:
    root = plant(tmp_path, {"actors/a.py": "import actors.b", "actors/b.py": back})
    assert cycle(root) == []


@pytest.mark.parametrize("room", ROOMS[:3])
def test_a_room_is_imported_from_this_checkout(checkout: Path, room: str) -> None:
    origin = importlib.import_module(room).__file__
    assert origin is not None
    assert Path(origin).resolve() == checkout / room / "__init__.py"


@pytest.mark.parametrize("module", LIGHT)
def test_loading_a_light_module_loads_no_heavy_package(checkout: Path, module: str) -> None:
    if not (checkout / f"{module.replace('.', '/')}.py").exists():
        pytest.skip(f"{module} is not written yet")
    code = f"import sys, {module}; print(*sorted({set(HOMES)} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_no_package_stands_under_tests(checkout: Path) -> None:
    assert list((checkout / "tests").rglob("__init__.py")) == []


def blas_calls(text: str) -> list[str]:
    """What hands sums to BLAS, whose bits hang on its threads."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                found.append(f"{node.lineno}: @")
            case ast.Attribute(attr=name) if name in BLAS:
                found.append(f"{node.lineno}: {name}")
            case ast.Attribute(value=ast.Attribute(attr="linalg"), attr=name) if (
                name != "LinAlgError"
            ):
                found.append(f"{node.lineno}: linalg.{name}")
    return found


def test_a_policy_hands_no_sum_to_blas(checkout: Path) -> None:
    """A decision is made again bit for bit where there are other threads: policies/linear.py."""
    for file in sorted((checkout / "policies").glob("*.py")):
        assert blas_calls(file.read_text()) == [], file.name


@pytest.mark.parametrize(
    "text", ["a @ b", "a @= b", "np.dot(a, b)", "a.dot(b)", "np.linalg.solve(a, b)", "np.cov(a)"]
)
def test_a_planted_call_of_blas_is_caught(text: str) -> None:
    assert len(blas_calls(text)) == 1
    assert blas_calls("np.linalg.LinAlgError('')") == []
