"""How long a paper's building and evaluating take with a model, from its shapes alone:

    python -m reflectune.inference.estimate --model miniature/llava --questions 1000 --stages probe closed_book mr2ag
    python -m reflectune.inference.estimate --architecture configs/llava15_7b/architecture.json --dtype bfloat16 \
        --questions 73620 --stages mr2ag --passages 150 --tflops 400 --bandwidth 3350 --processes 8

Without `tflops` the rate is measured here, on a few layers of the model's shapes. What training takes, and what index
encoding does, say `train.estimate` and `retrieval.build_index --dry_run`.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.inference.forecasting.config import InferenceEstimateConfig


@entry_point
def main() -> None:
    """Parse the config, then print the table."""
    (config,) = parse_config(InferenceEstimateConfig)
    from reflectune.inference.forecasting.plan import report  # slow to import: after the config is right

    print(report(config))


if __name__ == "__main__":
    main()
