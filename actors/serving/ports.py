"""Ports for servers: check the one that was asked for, or pick one that is free."""

import errno
import socket


def claim_port(host: str, *, port: int) -> int:
    """`port` if nothing listens there, or any free one for 0; a check, not a reservation."""
    with socket.socket(_family(host)) as probe:
        # a former server's connections in TIME_WAIT do not make the port taken
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"port {port} is in use on {host}; end the process that listens there, "
                    "or set engine.port to another one (0: any free port)"
                ) from error
            raise ValueError(f"cannot serve on {host}, port {port}: {error.strerror}") from error
        return int(probe.getsockname()[1])


def url_of(host: str, *, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
