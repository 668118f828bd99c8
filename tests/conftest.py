"""Shared by all tests: the checkout, longer limits for Ray and vLLM, and counts by marker.

No ``__init__.py`` stands under ``tests/``: it would make ``import policies`` find the tests.
"""

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WORLDS = ("gpu", "vllm", "ray", "torch")  # the first that a test is marked with names its count
SLOW_WORLDS = ("gpu", "vllm", "ray")
SLOW_LIMIT_S = 300


# Each test that starts Ray has its own: it would find that of a study beside it.
os.environ["RAY_ADDRESS"] = "local"


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that is under test."""
    return Path(__file__).resolve().parents[1]


def pytest_itemcollected(item: pytest.Item) -> None:
    if not any(item.get_closest_marker(world) for world in SLOW_WORLDS):
        return
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup`` files with Ray or vLLM run one after another, in two lanes.

    What a server measures is in one, studies on the step clock are in the other: those wait for
    nothing but each other. By file, because pytest 9.2 no longer sees xdist's own group marks.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane(config.rootpath / nodeid.partition("::")[0]) or nodeid

    return Lanes(config, log)


@cache
def lane(path: Path) -> str | None:
    """By the marks in the file; None: each of its tests may run anywhere."""
    marks = set(re.findall(r"pytest\.mark\.(\w+)", path.read_text()))
    if "step_clock" in marks:
        return "step_clock"
    return "wall_clock" if marks & set(SLOW_WORLDS) else None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line a marker: outcomes and seconds, set-up included."""
    outcomes: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            world = next((w for w in WORLDS if w in report.keywords), "pure")
            seconds[world] = seconds.get(world, 0.0) + report.duration
            if report.when == "call" or report.outcome != "passed":
                outcomes.setdefault(world, Counter())[report.outcome] += 1
    terminalreporter.section("by marker")
    for world in ("pure", *reversed(WORLDS)):
        if world in outcomes:
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes[world].items()))
            terminalreporter.write_line(f"{world}: {counts} in {seconds[world]:.1f} s")
