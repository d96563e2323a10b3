"""What the checks of a checkpoint cost when it is loaded: names and shapes of its tensors, NaN, tokenizer and template.

    python benchmarks/loading.py

Each model is loaded by turns with the checks and without, and the least time of each way counts. `miniature/…` and a
fine-tuned checkpoint of it are loaded by `reflectune.models.loading.load`. `pocket/language`, if it was fetched, is no
LLaVA: it is loaded by the same steps, which are its weights, its tokenizer, and the hash of its files. The files are in
the page cache, where loading is fastest and checks weigh most. The processors' seconds are told too: they count on a
machine that has other things to do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reflectune.core.hashing import file_fingerprint, read_blocks
from reflectune.core.weights import FiniteFiles, check_names
from reflectune.examples.pocket.models.parts import cache_folder, is_fetched
from reflectune.models import loading
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.weights import pretrained

ALLOWED = 0.05
"""Share of the time without checks."""


@contextmanager
def without_checks() -> Iterator[None]:
    """Within, `load` looks at nothing."""
    with (
        patch.object(pretrained, "check_names", lambda *given, **named: None),
        patch.object(FiniteFiles, "read", lambda self, path: read_blocks(path)),
        patch.object(loading, "check_reading", lambda *given: None),
        patch.object(loading, "_check_saved", lambda *given: None),
        patch.object(pretrained, "_check_size", lambda *given: None),
    ):
        yield


def load_language(folder: Path, *, checked: bool) -> None:
    """Load a language model by the steps that `load` takes of any model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind: Any = AutoModelForCausalLM
    _, report = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True)
    if checked:
        check_names(str(folder), report)
    AutoTokenizer.from_pretrained(folder)
    files = sorted(folder.glob("*.safetensors"))
    weights = FiniteFiles(str(folder), files)
    file_fingerprint(*files, read=weights.read)
    weights.check()


def measure(way: Callable[[bool], Any], repeats: int) -> dict[bool, tuple[float, float]]:
    """The least seconds by the clock and of the processors, with the checks (True) and without."""
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    way(True)  # the files into the page cache
    for number in range(2 * repeats):
        checked = number % 2 == 0
        clock, cpu = time.perf_counter(), time.process_time()
        with nullcontext() if checked else without_checks():
            way(checked)
        times[checked].append((time.perf_counter() - clock, time.process_time() - cpu))
    return {checked: (min(clock for clock, _ in all_), min(cpu for _, cpu in all_)) for checked, all_ in times.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        tuned = Path(folder, "checkpoint")
        made = load("miniature/llava", scheme="mr2ag")
        assert made.scheme is not None  # it was asked for
        save_checkpoint(tuned, made.model, made.processor, made.scheme, {"base_model": "miniature/llava", "seed": 0})
        ways: dict[str, Callable[[bool], Any]] = {
            "miniature/llava": lambda checked: load("miniature/llava"),
            "miniature/qwen2_vl": lambda checked: load("miniature/qwen2_vl"),
            "a fine-tuned miniature/llava": lambda checked: load(str(tuned)),
        }
        if is_fetched("language"):
            language = cache_folder() / "language"
            ways["pocket/language"] = lambda checked: load_language(language, checked=checked)
        print("| model | without checks | with checks | more | processors, without | with | more |")
        print("|---|---|---|---|---|---|---|")
        for name, way in ways.items():
            seconds = measure(way, repeats)
            cells = []
            for before, after in zip(seconds[False], seconds[True], strict=True):
                cells += [f"{before * 1000:,.0f} ms", f"{after * 1000:,.0f} ms", f"{(after / before - 1) * 100:+.1f} %"]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nallowed: {ALLOWED:.0%} more by the clock")


if __name__ == "__main__":
    main()
