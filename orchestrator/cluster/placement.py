"""Islands and sidecars to placement-group bundles; and whether the nodes present can hold them.

Pure: nodes are lists of {resource: amount}. Ray packs the same way, but an infeasible group only
stays pending there, so it is refused here with what is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import StudyConfig

Bundle = dict[str, float]
_STRATEGY = {"same_node": "STRICT_PACK", "spread": "SPREAD", "pack": "PACK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Bundles in order: every island, then every sidecar."""

    bundles: tuple[Bundle, ...]
    strategy: str
    islands: int

    def island_bundle(self, island: int) -> int:
        return island

    def sidecar_bundle(self, sidecar: int) -> int:
        return self.islands + sidecar


def plan_placement(study: StudyConfig) -> Placement:
    """The study's bundles and Ray strategy."""
    islands = [_bundle(study.islands.num_cpus, study.islands.num_gpus)] * study.islands.count
    sidecars = [_bundle(study.sidecars.num_cpus, study.sidecars.num_gpus)] * study.sidecars.count
    return Placement(
        bundles=tuple(islands + sidecars),
        strategy=_STRATEGY[study.resources.placement],
        islands=study.islands.count,
    )


def island_placement(study: StudyConfig) -> Placement:
    """The islands alone, where nothing is served."""
    bundles = [_bundle(study.islands.num_cpus, study.islands.num_gpus)] * study.islands.count
    return Placement(
        bundles=tuple(bundles),
        strategy=_STRATEGY[study.resources.placement],
        islands=study.islands.count,
    )


def _bundle(num_cpus: float, num_gpus: float) -> Bundle:
    bundle = {k: v for k, v in (("CPU", num_cpus), ("GPU", num_gpus)) if v > 0}
    if not bundle:
        raise ValueError(
            "an island or sidecar asks for num_cpus=0 and num_gpus=0; Ray places nothing that asks "
            "for nothing: give it a fraction, e.g. num_cpus: 0.25"
        )
    return bundle


def why_infeasible(placement: Placement, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """None when the nodes hold the bundles; else one line that names what is missing."""
    wanted = _total(placement.bundles)
    if placement.strategy == "STRICT_PACK":
        best = max(
            nodes, key=lambda n: sum(min(n.get(k, 0.0), v) for k, v in wanted.items()), default={}
        )
        lacking = _lacking(wanted, best)
        where = "one node (placement: same_node)"
    else:
        lacking = _lacking(wanted, _total(nodes))
        where = "the cluster"
        if lacking is None and not _packs(placement.bundles, nodes):
            lacking = "no assignment of its bundles to the nodes fits"
    if lacking is None:
        return None
    needs = ", ".join(f"{v:g} {k}" for k, v in wanted.items())
    return f"the study needs {needs} on {where}; {lacking}"


def _total(parts: Sequence[Mapping[str, float]]) -> Bundle:
    total: Bundle = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _lacking(wanted: Bundle, have: Mapping[str, float]) -> str | None:
    short = [
        f"{k}: {v:g} needed, {have.get(k, 0.0):g} present"
        for k, v in wanted.items()
        if v > have.get(k, 0.0) + 1e-9
    ]
    return "; ".join(short) or None


def _packs(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> bool:
    """First fit, largest bundle first: the order that Ray's packing takes too."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(
        bundles, key=lambda b: (b.get("GPU", 0.0), b.get("CPU", 0.0)), reverse=True
    ):
        fits = next((n for n in free if _lacking(bundle, n) is None), None)
        if fits is None:
            return False
        for key, value in bundle.items():
            fits[key] -= value
    return True
