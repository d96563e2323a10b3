"""A fork of the server ends as a program of its own does."""

import subprocess
from pathlib import Path

PROGRAM = """
import atexit, sys, threading, time
atexit.register(print, "called at the end")
threading.Thread(target=lambda: (time.sleep(0.1), print("waited for"))).start()
sys.stdout.write("unflushed\\n")
sys.exit(3)
"""


def test_what_runs_at_a_programs_end_runs_in_a_fork(forked_python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run([forked_python, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "unflushed\nwaited for\ncalled at the end\n")
    assert ended.stderr == ""
