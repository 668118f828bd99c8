"""The rows of envelope.png: a policy, then its own controls, each with its rates seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records import RunMetrics
from orchestrator.report.words import ARM_ORDER, by_arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Violation rates of one role; a seed of matched random holds one rate a draw."""

    policy: str
    role: str  # policy | aa | matched_random | placebo | oracle
    rates: dict[int, tuple[float, ...]]

    def mean(self) -> float:
        """Mean over seeds of each seed's mean: seeds weigh the same."""
        means = [sum(r) / len(r) for r in self.rates.values()]
        return sum(means) / len(means)

    @property
    def label(self) -> str:
        role = "A/A" if self.role == "aa" else self.role.replace("_", " ")
        name = self.policy if self.role == "policy" else f"{role} of {self.policy}"
        draws = sum(len(r) for r in self.rates.values())
        count = f"n = {len(self.rates)}"
        return f"{name}\n{count}" + (f", {draws} draws" if self.role == "matched_random" else "")


def envelope_rows(metrics: Sequence[RunMetrics]) -> list[list[Row]]:
    """One group a policy, the policy first; only complete runs count."""
    groups: dict[str, dict[str, dict[int, list[float]]]] = {}
    for runs in by_arm(metrics).values():
        for m in runs:
            if m.kind == "no_sync" or m.status != "complete" or m.violation_rate is None:
                continue
            roles = groups.setdefault(policy_of(m.arm, kind=m.kind), {})
            roles.setdefault(m.kind, {}).setdefault(m.seed, []).append(m.violation_rate)
    return [
        [
            Row(policy=policy, role=role, rates={s: tuple(r) for s, r in roles[role].items()})
            for role in ARM_ORDER
            if role in roles
        ]
        for policy, roles in groups.items()
    ]


def policy_of(label: str, *, kind: str) -> str:
    """The policy that an arm label runs or controls: matched_random-of-X-d0 gives X."""
    if kind == "policy":
        return label
    name = label.removeprefix(f"{kind}-of-")
    return name.rpartition("-d")[0] if kind == "matched_random" else name


def no_sync_rates(metrics: Sequence[RunMetrics]) -> list[float]:
    """Violation rates of all complete no_sync runs."""
    return [
        m.violation_rate
        for m in metrics
        if m.kind == "no_sync" and m.status == "complete" and m.violation_rate is not None
    ]
