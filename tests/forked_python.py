"""Stands for `python`: the project's programs and pytest-xdist's workers become forks of `fork_server.py`.

    python -IS tests/forked_python.py SOCKET ( -m module … | script … | -u -c program )

All else is run by Python itself.
"""

import json
import os
import socket
import sys

LAUNCHER = "accelerate.commands.launch"


def main() -> None:
    place, executable, *argv = sys.argv[1:]
    if argv[0].endswith(".py"):
        program = argv
    elif argv[:2] == ["-m", LAUNCHER]:
        program = ["launch", *argv[2:]]
    elif argv[0] == "-m" and argv[1].partition(".")[0] == "reflectune":
        program = argv
    elif argv[:2] == ["-u", "-c"]:
        program = argv[1:]
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
