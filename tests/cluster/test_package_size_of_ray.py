"""Our reading of Ray's packaging against Ray's own: the same entries, the same bytes."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from orchestrator.cluster.package_size import uploaded, working_dir_bytes

packaging = pytest.importorskip("ray._private.runtime_env.packaging")
constants = pytest.importorskip("ray._private.ray_constants")
pytestmark = pytest.mark.ray


def rays_zip(folder: Path, target: Path) -> Path:
    packaging.create_package(
        str(folder),
        target,
        include_gitignore=True,
        excludes=constants.get_runtime_env_default_excludes(),
    )
    return target


def assert_same_as_ray(folder: Path, target: Path) -> None:
    made = rays_zip(folder, target)
    with ZipFile(made) as archive:
        theirs = {name.rstrip("/") for name in archive.namelist()}
    ours = {path.as_posix() for path, _ in uploaded(folder, environ={})}
    assert ours == theirs
    assert working_dir_bytes(folder, environ={}) == made.stat().st_size


def test_the_checkout_is_measured_as_ray_packs_it(checkout: Path, tmp_path: Path) -> None:
    assert_same_as_ray(checkout, tmp_path / "package.zip")


def test_awkward_rules_are_read_as_ray_reads_them(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (
        "a/b/c.txt",
        "a/b/d.log",
        "runs/x.csv",
        "runs/keep/y.csv",
        "cache/z.bin",
        "venv/lib.py",
        "deep/venv/lib.py",
        "deep/runs/x.csv",
        "spaced name.txt",
        "umlaut-\u00e4.txt",
    ):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tree / "empty").mkdir()
    (tree / ".gitignore").write_text(
        "# comment\n\n/runs/\n!/runs/keep/\n*.log\nspaced\\ name.txt\n"
    )
    (tree / "cache" / ".gitignore").write_text("*\n")
    (tree / "a" / ".rayignore").write_text("b/*\n!b/d.log\n")
    assert_same_as_ray(tree, tmp_path / "package.zip")
