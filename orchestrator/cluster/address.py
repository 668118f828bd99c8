"""Whether RAY_ADDRESS can be a cluster: Ray itself tries a dead address for minutes."""

import socket

from orchestrator.endings import StageFailed

CONNECT_TIMEOUT_S = 5.0  # to a head node that is there


def check_address(address: str) -> None:
    """StageFailed when nothing answers there; ValueError for the address of the job API."""
    if address.startswith(("http://", "https://")):
        raise ValueError(
            f"RAY_ADDRESS={address} is the job API's address: use it with `ray job submit`; for "
            "`lull` itself unset it or give HOST:6379"
        )
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # unset, auto or local
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise StageFailed(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({error.strerror or error}); "
            "start it, or unset RAY_ADDRESS to run on this machine"
        ) from error
