"""Stands for `python`: the project's programs become forks of `fork_server.py`, all else is run by Python itself.

python -IS tests/forked_python.py SOCKET ( -m module … | script … )
"""

import json
import os
import socket
import sys

OURS = ("reflectune.", "accelerate.commands.launch")


def main() -> None:
    place, executable, *argv = sys.argv[1:]
    if argv[0].endswith(".py"):
        program = argv
    elif argv[0] == "-m" and argv[1].startswith(OURS):
        program = ["launch", *argv[2:]] if argv[1] == OURS[1] else argv
    else:
        os.execv(sys.executable, [sys.executable, *argv])
    asked = {"argv": program, "cwd": os.getcwd(), "env": dict(os.environ), "executable": executable}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        status = int(server.makefile().read().split()[1])
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
