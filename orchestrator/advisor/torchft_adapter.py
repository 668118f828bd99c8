"""torchft's DiLoCo (or LocalSGD) merging when the advisor says so, and not every H steps.

    with AdvisedDiLoCo(diloco, AdvisorClient(url, own_h_steps=100), tokens_per_step=8192):
        ...  # the training loop as it was, in the place of `with diloco:`

How torchft decides (torchft/local_sgd.py): DiLoCo counts inner steps since the last merge in
`_local_step`, in a hook that its inner optimizer calls after each step, and compares the count with
`_sync_every`: at `_sync_every - _fragment_sync_delay` it forms the quorum and sends a fragment
(which one follows from the manager's step, which the quorum makes the same for all replicas), at
`_sync_every` it takes the outer step and counts from 0 again. Beyond `_sync_every` an assertion
fails. LocalSGD and the older DiLoCo compare with `>=`. Nothing else reads `_sync_every` after the
constructor. So it may be set anew before each comparison, as a hook of ours does that stands before
torchft's: to a step that is not yet due while no merge is decided, and to the merge's step from
there on. torchft forms the quorum, heals, commits and drops replicas as it always does.

What it asks for:
- a merge must be known `fragment_sync_delay` steps ahead: `notice_steps` of the advice at least;
- all replicas ask the same advisor, each under its own number;
- a merge moves one fragment: with n fragments the corridor is that between any two of them;
- the manager's `quorum_timeout` outlasts the longest round, as with any sync_every.

What it cannot give: a replica that is not in the quorum (dead, healing) is torchft's to see; the
advisor only hears that it is silent. A merge that torchft does not commit counts as made, for all
replicas: torchft tries the fragment again at the next one. And `AsyncDiLoCo` of forks, whose
all-reduce of one round is applied in the next, has no step at which a merge starts and ends: it is
refused.
"""

import inspect
import time
from collections.abc import Callable
from importlib import metadata
from types import TracebackType
from typing import Any

from actors.coordinator.advice import AdviceRefused, Learner, MergeDecision, Progress

LOCAL_STEP, SYNC_EVERY, DELAY = "_local_step", "_sync_every", "_fragment_sync_delay"
OPTIMIZER, HOOKS, FRAGMENTS = "_local_optimizer", "_hooks", "_fragments"
STEP_HOOK = "_step_post_hook"


class TorchftUnknown(RuntimeError):
    """This torchft decides in another way than the one this adapter was written for."""


def _no_loss() -> float | None:
    return None


class AdvisedDiLoCo:
    """Stands in the place of ``with diloco:``; TorchftUnknown where it could not do its work.

    ``start_step``: inner steps done before, on the axis that all replicas count on; None: where
    the others stand, as a replica that joins later has to (0 for the first).
    """

    def __init__(
        self,
        diloco: Any,
        learner: Learner,
        *,
        tokens_per_step: int,
        start_step: int | None = None,
        loss: Callable[[], float | None] = _no_loss,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        _check(diloco)
        self._diloco = diloco
        self._learner = learner
        self._tokens_per_step = tokens_per_step
        self._start_step = start_step
        self._loss = loss
        self._clock_s = clock_s
        self._delay_steps: int = getattr(diloco, DELAY, 0)
        self._handles: list[Any] = []
        self._steps = 0  # done under this adapter
        self._step = 0  # on the common axis
        self._began_s = 0.0
        self._sent = False  # the fragment is on its way: its step stands

    def __enter__(self) -> "AdvisedDiLoCo":
        """Hooks before and after torchft's own: an optimizer calls them in this order."""
        if getattr(self._diloco, HOOKS):
            raise ValueError(
                "this DiLoCo is entered already, so its hook would come before the adapter's; "
                "write `with AdvisedDiLoCo(diloco, ...):` in the place of `with diloco:`"
            )
        self._step = self._first_step()
        optimizer = getattr(self._diloco, OPTIMIZER)
        self._handles.append(optimizer.register_step_post_hook(self._before))
        try:
            self._diloco.__enter__()
        except BaseException:
            self._remove()
            raise
        self._handles.append(optimizer.register_step_post_hook(self._after))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._remove()
        return bool(self._diloco.__exit__(kind, error, traceback))

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _first_step(self) -> int:
        standing = self._learner.standing()
        if standing is not None and standing.notice_steps < self._delay_steps:
            raise ValueError(
                f"the advice gives notice_steps={standing.notice_steps}, but this DiLoCo sends a "
                f"fragment fragment_sync_delay={self._delay_steps} steps before it merges; raise "
                f"notice_steps to {self._delay_steps}"
            )
        if self._start_step is not None:
            return self._start_step
        return 0 if standing is None or standing.step is None else standing.step

    def _before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """After the inner step, before torchft counts it: set what it will compare with."""
        self._steps += 1
        self._step += 1
        self._began_s = self._clock_s()
        if self._sent:
            return
        progress = Progress(tokens=self._steps * self._tokens_per_step, loss=self._loss())
        decision = self._ask(progress)
        done = getattr(self._diloco, LOCAL_STEP) + 1  # as torchft will have it
        if decision.merge_at_step is None:
            setattr(self._diloco, SYNC_EVERY, done + self._delay_steps + 1)  # not due in this step
            return
        left = max(decision.merge_at_step - self._step, self._delay_steps)
        self._sent = left == self._delay_steps
        setattr(self._diloco, SYNC_EVERY, done + left)

    def _ask(self, progress: Progress) -> MergeDecision:
        """The decision, also for a replica that loaded or was away while the others merged.

        torchft brings its state to theirs when it takes part again, so its steps count on from
        theirs too. AdviceRefused where they are not ahead.
        """
        try:
            return self._learner.ready_to_merge(self._step, progress)
        except AdviceRefused:
            standing = self._learner.standing()
            if standing is None:
                raise
            furthest = standing.last_merge_step if standing.step is None else standing.step
            if furthest is None or furthest < self._step:
                raise
            self._step = furthest + 1
            return self._learner.ready_to_merge(self._step, progress)

    def _after(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """torchft counts from 0 again: it has merged in this step."""
        if getattr(self._diloco, LOCAL_STEP) == 0:
            self._sent = False
            self._learner.merged(self._step, seconds=self._clock_s() - self._began_s)


def _check(diloco: Any) -> None:
    """TorchftUnknown unless the counters stand where this adapter sets them."""
    wanted = [LOCAL_STEP, SYNC_EVERY, OPTIMIZER, HOOKS, STEP_HOOK]
    wanted += [DELAY] if hasattr(diloco, FRAGMENTS) else []
    lacking = [name for name in wanted if not hasattr(diloco, name)]
    if not lacking:
        hook: Any = getattr(type(diloco), STEP_HOOK, None)
        read = getattr(getattr(inspect.unwrap(hook), "__code__", None), "co_names", ())
        counts = (LOCAL_STEP, SYNC_EVERY)
        lacking = [f"{name} in {STEP_HOOK}" for name in counts if name not in read]
    if not lacking and not hasattr(getattr(diloco, OPTIMIZER), "register_step_post_hook"):
        lacking = ["register_step_post_hook of its optimizer"]
    if not lacking and "async" in type(diloco).__name__.lower():
        lacking = ["a step at which a merge starts and ends"]
    if lacking:
        raise TorchftUnknown(
            f"{type(diloco).__module__}.{type(diloco).__qualname__} of torchft {_version()} lacks "
            f"{', '.join(lacking)}; this adapter was written for local_sgd.DiLoCo and "
            "local_sgd.LocalSGD of torchft 0.2, which count in a hook: use one of these, or call "
            "Learner.ready_to_merge in a merge loop of your own"
        )


def _version() -> str:
    try:
        return metadata.version("torchft")
    except metadata.PackageNotFoundError:
        return "(not installed)"
