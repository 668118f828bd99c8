"""The traces that stand in the repository are those that their README names."""

import hashlib
import re
from pathlib import Path


def test_the_bytes_are_those_of_the_readme(checkout: Path) -> None:
    folder = checkout / "experiments/traces"
    text = (folder / "README.md").read_text()
    data = sorted(f for f in folder.iterdir() if ".csv" in f.suffixes or f.suffix == ".gz")
    assert data
    assert all(f"`{f.name}`" in text for f in data)
    stated = re.findall(r"sha256: `([0-9a-f]{64})`", text)
    assert sorted(stated) == sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in data)
    for licence in ("CC BY 4.0", "Apache License 2.0"):
        assert licence in text
