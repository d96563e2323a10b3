"""The page of pocket reads what the last stages of its fresh test wrote."""

import json

from reflectune.examples.pocket.run import BEST_READER, BY_IMAGES, RUN, SEEDS
from reflectune.inference.scoring.seeds import joined

ROW = {"score": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}, "lead": None}


def test_each_fit_and_each_training_has_a_row_of_its_own(script, tmp_path) -> None:
    pocket = script("pocket")
    asked = [name for name in pocket.TITLES if "(" not in name and not name.endswith("_fitted")]
    fits = {"": ("mr2ag_fitted",), "_text": ("mr2ag_text_scored_fitted",)}
    folders = {
        "leads": {"fresh": asked, **{f"fit{kind}": fitted for kind, fitted in fits.items()}},
        "leads_by_images": {
            "fresh_by_images": asked,
            **{f"fit_by_images{kind}": fitted for kind, fitted in fits.items()},
            **{f"fresh_by_images_{seed}": ("mr2ag",) for seed in SEEDS},
            **{f"fit_by_images_{seed}": ("mr2ag_fitted",) for seed in SEEDS},
            **{folder: ("mmkb_rag",) for folder in BY_IMAGES if "mmkb" in folder or "retrieved" in folder},
        },
    }
    assert set(folders["leads_by_images"]) == set(BY_IMAGES)
    for name, pipelines in folders.items():
        records = {
            f"{RUN}/{folder}": {"metric": "infoseek", "questions": [], "correct": {pipeline: [] for pipeline in ran}}
            for folder, ran in pipelines.items()
        }
        record = {"leads": {"parts": {"overall": dict.fromkeys(joined(records)["correct"], ROW)}}}
        (tmp_path / RUN / name).mkdir(parents=True)
        (tmp_path / RUN / name / "compare.json").write_text(json.dumps(record))
    by_titles, by_images = pocket.figures_of(tmp_path).values()
    assert set(by_images) == set(pocket.TITLES)
    only_by_images = {name for name in pocket.TITLES if "mmkb_rag" in name or name.rstrip(")")[-1].isdigit()}
    assert set(by_titles) == set(pocket.TITLES) - only_by_images
    assert BEST_READER in by_titles
