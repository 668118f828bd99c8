"""torchft's DiLoCo merges at the advisor's steps: against a likeness of it, and itself if there.

The likeness counts and compares as torchft/local_sgd.py does (BSD-3-Clause, Meta Platforms): a hook
after each inner step, `==` for the fragment's two moments, an assertion beyond. It moves no tensor.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.clock import VirtualClock
from actors.coordinator.advice import (
    AdvisorSilent,
    Learner,
    Merged,
    MergeDecision,
    Report,
    Standing,
)
from orchestrator.advisor.session import AdviceSession
from orchestrator.advisor.torchft_adapter import AdvisedDiLoCo, TorchftUnknown
from tests.advising import advice

Hook = Callable[[Any, Any, Any], None]


class Optimizer:
    """Calls its hooks after each step in the order in which they were given, as torch's does."""

    def __init__(self) -> None:
        self.steps = 0
        self.hooks: dict[int, Hook] = {}
        self._given = 0

    def register_step_post_hook(self, hook: Hook) -> SimpleNamespace:
        self._given += 1
        key = self._given
        self.hooks[key] = hook
        return SimpleNamespace(remove=lambda: self.hooks.pop(key, None))

    def step(self) -> None:
        self.steps += 1
        for hook in list(self.hooks.values()):
            hook(self, (), {})


class DiLoCo:
    """As torchft's, with ``fragments`` that take turns by the manager's step."""

    def __init__(
        self, optimizer: Optimizer, *, sync_every: int, fragments: int = 1, delay: int = 0
    ) -> None:
        self._local_optimizer = optimizer
        self._local_step = 0
        self._sync_every = sync_every // fragments
        self._fragment_sync_delay = delay
        self._fragments = list(range(fragments))
        self._hooks: list[Any] = []
        self._sent: int | None = None
        self.sent_at: list[int] = []
        self.synced: list[tuple[int, int]] = []  # optimizer step, fragment

    def __enter__(self) -> "DiLoCo":
        hook = self._local_optimizer.register_step_post_hook(self._step_post_hook)
        self._hooks.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _step_post_hook(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._local_step += 1
        if self._local_step == self._sync_every - self._fragment_sync_delay:
            assert self._sent is None
            self._sent = len(self.synced) % len(self._fragments)
            self.sent_at.append(self._local_optimizer.steps)
        if self._local_step < self._sync_every:
            return
        assert self._local_step == self._sync_every, "never greater"
        assert self._sent is not None, "waits for what was never sent"
        self.synced.append((self._local_optimizer.steps, self._sent))
        self._sent, self._local_step = None, 0


class LocalSGD(DiLoCo):
    """The older comparison, without fragments."""

    def __init__(self, optimizer: Optimizer, *, sync_every: int) -> None:
        super().__init__(optimizer, sync_every=sync_every)
        del self._fragments, self._fragment_sync_delay

    def _step_post_hook(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._local_step += 1
        if self._local_step >= self._sync_every:
            self.synced.append((self._local_optimizer.steps, 0))
            self._local_step = 0


class Silent:
    """An advisor that nobody reaches."""

    def ask(self, report: Report) -> MergeDecision:
        raise AdvisorSilent("refused")

    def merged(self, done: Merged) -> None:
        raise AdvisorSilent("refused")

    def standing(self) -> Standing:
        raise AdvisorSilent("refused")


def run(replicas: list[AdvisedDiLoCo], optimizers: list[Optimizer], *, steps: int) -> None:
    """All replicas step by step, as a synchronous merge holds them."""
    for replica in replicas:
        replica.__enter__()
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.step()
    for replica in replicas:
        replica.__exit__(None, None, None)


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (1, 3), (2, 0), (4, 2)])
def test_all_replicas_merge_at_the_advisors_steps(fragments: int, delay: int) -> None:
    config = advice(policy={"kind": "fixed_h", "h_steps": 15}, notice_steps=delay)
    session = AdviceSession(config, folder=None, clock=VirtualClock())
    optimizers = [Optimizer(), Optimizer(), Optimizer()]
    dilocos = [DiLoCo(o, sync_every=1000, fragments=fragments, delay=delay) for o in optimizers]
    replicas = [
        AdvisedDiLoCo(d, Learner(session, learner=i, own_h_steps=99), tokens_per_step=8)
        for i, d in enumerate(dilocos)
    ]
    run(replicas, optimizers, steps=70)
    expected = [(15 * (n + 1), n % fragments) for n in range(4)]
    assert [d.synced for d in dilocos] == [expected] * 3
    assert [d.sent_at for d in dilocos] == [[step - delay for step, _ in expected]] * 3
    assert session.standing().merges == 4
    assert [o.hooks for o in optimizers] == [{}, {}, {}]  # all taken back


def test_local_sgd_merges_at_the_advisors_steps_too() -> None:
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    optimizer = Optimizer()
    local = LocalSGD(optimizer, sync_every=3)
    adapter = AdvisedDiLoCo(local, Learner(session, learner=0, own_h_steps=99), tokens_per_step=8)
    run([adapter], [optimizer], steps=50)
    assert [step for step, _ in local.synced] == [20, 40]


@pytest.mark.parametrize("delay", [0, 2])
def test_without_an_answer_it_merges_at_its_own_h(delay: int) -> None:
    optimizer = Optimizer()
    diloco = DiLoCo(optimizer, sync_every=1000, delay=delay)
    learner = Learner(Silent(), learner=0, own_h_steps=12, notice_steps=delay)
    run([AdvisedDiLoCo(diloco, learner, tokens_per_step=8)], [optimizer], steps=40)
    assert [step for step, _ in diloco.synced] == [12, 24, 36]
    assert diloco.sent_at == [step - delay for step in (12, 24, 36)]


def test_a_replica_that_comes_later_counts_on_from_the_others() -> None:
    config = advice(policy={"kind": "fixed_h", "h_steps": 15})
    session = AdviceSession(config, folder=None, clock=VirtualClock())
    first, second = Optimizer(), Optimizer()
    here = DiLoCo(first, sync_every=1000)
    there = DiLoCo(second, sync_every=1000)
    with AdvisedDiLoCo(here, Learner(session, learner=0, own_h_steps=99), tokens_per_step=8):
        for _ in range(20):
            first.step()
        late = AdvisedDiLoCo(there, Learner(session, learner=1, own_h_steps=99), tokens_per_step=8)
        with late:
            for _ in range(15):
                first.step()
                second.step()
    assert [step for step, _ in here.synced] == [15, 30]
    assert [step for step, _ in there.synced] == [10]  # at the others' step 30


def test_a_replica_that_loads_while_the_others_merge_is_placed_where_they_are() -> None:
    config = advice(policy={"kind": "fixed_h", "h_steps": 15})
    session = AdviceSession(config, folder=None, clock=VirtualClock())
    first, second = Optimizer(), Optimizer()
    here = DiLoCo(first, sync_every=1000)
    there = DiLoCo(second, sync_every=1000)
    with AdvisedDiLoCo(here, Learner(session, learner=0, own_h_steps=99), tokens_per_step=8):
        for _ in range(12):
            first.step()
        late = AdvisedDiLoCo(there, Learner(session, learner=1, own_h_steps=99), tokens_per_step=8)
        with late:
            for _ in range(8):  # it compiles meanwhile
                first.step()
            for _ in range(10):
                second.step()
                first.step()
    assert [step for step, _ in here.synced] == [15, 30]
    assert [step for step, _ in there.synced] == [10]  # 21 is its first: at the others' step 30


def test_a_notice_that_is_too_short_for_the_delay_is_refused() -> None:
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    diloco = DiLoCo(Optimizer(), sync_every=1000, delay=2)
    adapter = AdvisedDiLoCo(diloco, Learner(session, learner=0, own_h_steps=99), tokens_per_step=8)
    with pytest.raises(ValueError, match=r"notice_steps=0, .*fragment_sync_delay=2 .*to 2"):
        adapter.__enter__()


def test_a_diloco_that_is_entered_already_is_refused() -> None:
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    with DiLoCo(Optimizer(), sync_every=10) as diloco:
        adapter = AdvisedDiLoCo(
            diloco, Learner(session, learner=0, own_h_steps=99), tokens_per_step=8
        )
        with pytest.raises(ValueError, match="in the place of `with diloco:`"):
            adapter.__enter__()


def test_another_torchft_than_the_one_that_is_known_is_one_clear_error() -> None:
    learner = Learner(Silent(), learner=0, own_h_steps=9)

    class Renamed(DiLoCo):
        def _step_post_hook(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
            """Counts somewhere else."""

    class AsyncDiLoCo(DiLoCo):
        pass

    no_counter = DiLoCo(Optimizer(), sync_every=9)
    vars(no_counter).pop("_sync_every")
    for diloco, said in (
        (no_counter, "lacks _sync_every; this adapter was written for"),
        (Renamed(Optimizer(), sync_every=9), "lacks _local_step in _step_post_hook, _sync_every"),
        (AsyncDiLoCo(Optimizer(), sync_every=9), "lacks a step at which a merge starts"),
        (SimpleNamespace(), "lacks _local_step, _sync_every, _local_optimizer"),
    ):
        with pytest.raises(TorchftUnknown, match=said):
            AdvisedDiLoCo(diloco, learner, tokens_per_step=8)


class Manager:
    """What torchft's DiLoCo calls of its manager, for one replica alone."""

    def __init__(self) -> None:
        self._use_async_quorum = False
        self.commits = 0

    def register_state_dict_fn(self, *_: object) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def start_quorum(self) -> None: ...

    def current_step(self) -> int:
        return self.commits

    def allreduce(self, tensor: Any, **_: object) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: True)

    def should_commit(self) -> bool:
        self.commits += 1
        return True


@pytest.mark.torch
def test_the_installed_torchft_merges_when_it_is_told_to() -> None:
    torch = pytest.importorskip("torch")
    local_sgd = pytest.importorskip("torchft.local_sgd")
    model, manager = torch.nn.Linear(2, 1), Manager()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    diloco = local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=1000)
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    learner = Learner(session, learner=0, own_h_steps=99)
    merged: list[int] = []
    with AdvisedDiLoCo(diloco, learner, tokens_per_step=8):
        for step in range(1, 46):
            inner.zero_grad()
            model(torch.ones(3, 2)).square().mean().backward()
            inner.step()
            if manager.commits > len(merged):
                merged.append(step)
    assert merged == [20, 40]
