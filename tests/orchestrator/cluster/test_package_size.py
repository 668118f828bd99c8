"""The size of what Ray would upload: ignore files honoured, too much refused with its cause."""

from pathlib import Path

import pytest

from orchestrator.cluster.package_size import check_working_dir, uploaded, working_dir_bytes


def names(folder: Path, **environ: str) -> set[str]:
    return {path.as_posix() for path, _ in uploaded(folder, environ=environ)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "code.py": "x = 1\n",
        "runs/big.parquet": "r" * 5000,
        "deep/.gitignore": "local.txt\n!keep.db\n",
        "deep/local.txt": "l",
        "deep/keep.db": "k",
        "deep/other.db": "o",
        "local.txt": "kept: the rule holds in deep/ only",
        "tests/test_x.py": "t",
        ".git/config": "g",
        "deep/venv/lib.py": "v",
        ".gitignore": "# a comment\n\n/runs/\n*.db\n",
        ".rayignore": "/tests/\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_ignore_files_and_default_excludes_are_left_out(tree: Path) -> None:
    files = {name for name in names(tree) if (tree / name).is_file()}
    assert files == {"code.py", "local.txt", ".gitignore", ".rayignore", "deep/.gitignore"}


def test_rays_own_variables_change_what_is_uploaded(tree: Path) -> None:
    without_gitignore = names(tree, RAY_RUNTIME_ENV_IGNORE_GITIGNORE="1")
    assert "runs/big.parquet" in without_gitignore
    assert "tests/test_x.py" not in without_gitignore
    assert ".git/config" in names(tree, RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES="")


def test_a_further_file_adds_its_size(tree: Path) -> None:
    before = working_dir_bytes(tree, environ={})
    (tree / "data.bin").write_bytes(bytes(1000))
    (tree / "runs" / "more.parquet").write_bytes(bytes(1000))
    assert 1000 < working_dir_bytes(tree, environ={}) - before < 1200


def test_a_folder_that_is_too_large_is_refused_with_its_largest_entries(tree: Path) -> None:
    (tree / "traces").mkdir()
    (tree / "traces" / "year.csv").write_bytes(bytes(2 * 1024**2))
    with pytest.raises(
        ValueError,
        match=r"takes 2\.0 MiB, above the limit of 1\.0 MiB; largest: "
        r"traces 2\.0 MiB \(with traces/year\.csv 2\.0 MiB\), .*\.rayignore",
    ):
        check_working_dir(tree, limit_bytes=1024**2, environ={})
    assert check_working_dir(tree, environ={}) == working_dir_bytes(tree, environ={})


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is no folder"):
        check_working_dir(tmp_path / "nowhere")


def test_this_checkout_fits_and_brings_what_a_cluster_needs(checkout: Path) -> None:
    check_working_dir(checkout, environ={})
    kept = names(checkout)
    assert {"orchestrator/config.py", "policies/units.py", "pyproject.toml"} <= kept
    assert not [name for name in kept if name.startswith(("tests/", "runs/", ".venv", ".git/"))]
