"""Run a script on a simulated GPU: simulated_gpu.py SCRIPT …"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.pretend_devices import gpus

    del sys.argv[0]
    with gpus():
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
