"""Stand in for an agent of a Ray node until a process connects to it. This script imports nothing but the standard library.

A node starts two agents, and is not up before each has written its ports to the session's folder. Their imports alone take a second of a
core each. The node ends when one of them does.

    python -I -S idle_agent.py SESSION NODE PORTS                    writes that there are no ports, and waits
    python -I -S idle_agent.py SESSION NODE PORT ADDRESS COMMAND..   listens, and becomes COMMAND at the first connection
"""

from __future__ import annotations

import os
import select
import socket
import sys

PARENT_EVERY_S = 2.0
UNUSED = -1
"""Ray's own agents write it for a port that they do not open."""
ANY_PORT = "--runtime-env-agent-port=0"


def write_ports(session: str, node: str, names: str, port: int) -> None:
    """Write a port under each of the names, separated by commas, where the node looks for them; whole, as it reads at once."""
    for name in names.split(","):
        place = os.path.join(session, f"{name}_{node}")
        with open(f"{place}.new", "w", encoding="ascii") as file:
            file.write(str(port))
        os.replace(f"{place}.new", place)


def wait(listening: list[socket.socket]) -> bool:
    """Wait for a connection, True, or for the end of the node that started this process, False."""
    node = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())  # Ray sets it: the node may be gone by now
    while os.getppid() == node:
        if select.select(listening, [], [], PARENT_EVERY_S)[0]:
            return True
    return False


def main(session: str, node: str, names: str, *command: str) -> None:
    """Write the ports, wait, and become the agent that is asked for. Ray adds options to the end of either form."""
    address, *agent = command if command and not command[0].startswith("-") else ("",)
    if not address:
        write_ports(session, node, names, UNUSED)
        wait([])
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        write_ports(session, node, names, port)
        asked = wait([server])
    if asked:  # the node tries again until the agent listens
        own = ANY_PORT.replace("=0", f"={port}")
        os.execv(agent[0], [own if word == ANY_PORT else word for word in agent])


if __name__ == "__main__":
    main(*sys.argv[1:])
