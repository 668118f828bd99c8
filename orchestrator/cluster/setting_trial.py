"""A trial of a sweep, on a worker; loads neither the driver's part nor the live actors."""

from typing import Any

from ray import tune

from orchestrator.sweep.blocks import Block
from orchestrator.sweep.here import Plan
from orchestrator.sweep.settings import make_setting


class SettingTrial(tune.Trainable):
    """One setting after the other in one process, one batch of blocks a step."""

    def setup(self, config: dict[str, Any], plan: Plan | None = None) -> None:
        if plan is not None:
            self._plan = plan
        made = make_setting(self._plan.study, self._plan.space, config["values"])
        assert made.study is not None
        self._id, self._study = made.setting, made.study
        self._todo = [[Block(*b) for b in batch] for batch in config["todo"]]

    def step(self) -> dict[str, Any]:
        blocks = self._todo.pop(0)
        return {"rows": self._plan.bench.batch(self._study, setting=self._id, blocks=blocks)}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next setting on the plan that is here, whose controls are known by now.

        Not by ``self.setup``: that of ``tune.with_parameters`` fetches the plan anew.
        """
        SettingTrial.setup(self, new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: every batch is in the driver's hands."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing."""
