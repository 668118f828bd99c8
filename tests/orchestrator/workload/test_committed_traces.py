"""The traces that stand in the repository are those that their README names."""

import hashlib
import re
from pathlib import Path


def test_the_bytes_are_those_of_the_source(checkout: Path) -> None:
    folder = checkout / "experiments/traces"
    text = (folder / "README.md").read_text()
    (file,) = folder.glob("*.csv")
    assert f"`{file.name}`" in text
    assert re.findall(r"sha256: `([0-9a-f]{64})`", text) == [
        hashlib.sha256(file.read_bytes()).hexdigest()
    ]
    assert "CC BY 4.0" in text
