"""Live trials of a sweep: each on nodes of its own, so that no trial's load is another's noise.

Ray has no rule that keeps two placement groups apart. So a trial takes more than half of the
largest node: no node has room for two.
"""

import math
from collections.abc import Mapping, Sequence

from ray import tune

from orchestrator.cluster.placement import plan_placement
from orchestrator.config import StudyConfig

TRIAL_CPUS = 0.25  # the trial's own process, which polls
FIRST_BUNDLE = 1  # of the study's bundles; bundle 0 is the trial's own


def live_trial(
    study: StudyConfig, nodes: Sequence[Mapping[str, float]], *, at_once: int
) -> tune.PlacementGroupFactory:
    """Bundles: the trial, every island, every sidecar, and what keeps the node to itself.

    ValueError with the number of nodes that ``at_once`` trials need, when there are fewer, and for
    a placement over several nodes, whose trials cannot be kept apart.
    """
    placement = plan_placement(study)
    if placement.strategy != "STRICT_PACK":
        raise ValueError(
            f"resources.placement={study.resources.placement!r}: trials that spread over nodes "
            "cannot be kept apart; live sweeps need placement: same_node"
        )
    bundles = [{"CPU": TRIAL_CPUS}, *(dict(b) for b in placement.bundles)]
    needed = {key: sum(b.get(key, 0.0) for b in bundles) for key in ("CPU", "GPU")}
    largest = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    taken = max(needed["CPU"], math.floor(largest / 2.0) + 1.0)
    if taken > needed["CPU"]:
        bundles.append({"CPU": taken - needed["CPU"]})
    fit = sum(
        node.get("CPU", 0.0) >= taken and node.get("GPU", 0.0) >= needed["GPU"] for node in nodes
    )
    if fit < at_once:
        gpus = f" and {needed['GPU']:g} GPU" if needed["GPU"] else ""
        raise ValueError(
            f"{at_once} live trials at once need {at_once} nodes with {taken:g} CPU{gpus} each, "
            f"one a trial; the cluster has {fit} of {len(nodes)}: add nodes, or run one setting "
            "after the other with `lull run`"
        )
    return tune.PlacementGroupFactory(bundles, strategy="STRICT_PACK")
