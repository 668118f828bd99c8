"""What RAY_ADDRESS says, before Ray is loaded."""

import os


def names_cluster() -> bool:
    """It names a cluster; ``local`` asks Ray for a new one on this machine, as if it were unset."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")
