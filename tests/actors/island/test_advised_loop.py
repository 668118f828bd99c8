"""A plain torch loop outside our islands merges on the advisor's advice, as the README shows it."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from orchestrator.advisor.session import AdviceSession
from orchestrator.redecide import read_records, redecide
from tests.actors.island.advised_loop import train
from tests.advising import advice, serving

pytestmark = pytest.mark.torch
EXAMPLE = Path(__file__).with_name("advised_loop.py")


def test_it_merges_at_the_advisors_steps_and_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = advice(step_s=None, policy={"kind": "fixed_h", "h_steps": 15})
    session = AdviceSession(config, folder=tmp_path / "a")
    with serving(session) as url:
        merges, loss = train(url, steps=100)
    session.finish()
    assert merges == [15, 30, 45, 60, 75, 90]
    assert loss < 1.0  # 8 for a model that says nothing
    (record,) = read_records(tmp_path / "a")
    assert record.status == "complete"
    assert redecide(record).mismatches == 0


def test_the_readme_shows_it_in_at_most_thirty_lines(checkout: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    assert f"```python\n{text}```" in (checkout / "README.md").read_text(encoding="utf-8")
