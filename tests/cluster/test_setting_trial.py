"""A sweep's worker keeps what it knows from one setting to the next; no Ray is started."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("optuna")

from orchestrator.cluster.setting_trial import SettingTrial
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.settings import make_setting
from tests.cluster.test_sweep import inputs
from tests.fake_sweep import HALF_LIFE, plan_of

pytestmark = pytest.mark.ray


def test_a_worker_plays_the_controls_once_for_all_its_settings(tmp_path: Path) -> None:
    study, space = inputs(tmp_path)
    ledger, log = Ledger(tmp_path / "rows.jsonl", identity="test"), tmp_path / "log"

    class Fetching(SettingTrial):
        """As ``tune.with_parameters`` makes it: each setup finds a plan without any control."""

        def setup(self, config: dict[str, Any], plan: Any = None) -> None:
            super().setup(config, plan=plan_of(study, space, ledger, log=log))

    def config(half_life_s: float) -> dict[str, Any]:
        values = {HALF_LIFE: half_life_s, "corridor.target_steps": 40}
        assert make_setting(study, space, values).study is not None
        return {"values": values, "todo": [[(0, 0), (1, 0)], [(2, 0)]]}

    worker = object.__new__(Fetching)  # Tune's own start wants a cluster
    worker.setup(config(1.0))
    rows = [row for _ in range(2) for row in worker.step()["rows"]]
    assert worker.reset_config(config(2.0))
    again = [row for _ in range(2) for row in worker.step()["rows"]]
    draws = [int(line.split()[-1]) for line in log.read_text().splitlines()]
    assert draws == [space.tuning.draws] * 3 + [0] * 3
    assert [row["control_rates"] for row in again] == [row["control_rates"] for row in rows]
    ledger.close()
