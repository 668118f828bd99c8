"""The nodes of the connected cluster; apart from the stage, whose actors load torch."""

import ray


def cluster_nodes() -> list[dict[str, float]]:
    """Resources of the live nodes of the connected cluster."""
    return [
        {k: float(v) for k, v in node["Resources"].items() if k in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    ]
