"""The page of pocket reads what the last stages of its fresh test wrote."""

import json

from reflectune.examples.pocket.run import BEST_READER, BY_IMAGES, RUN, SEEDS

ROW = {"score": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}, "lead": None}


def test_each_fit_and_each_training_has_a_row_of_its_own(script, tmp_path) -> None:
    pocket = script("pocket")
    ran_once = [name for name in pocket.TITLES if "mr2ag" not in name and "(" not in name]
    controls = ["mr2ag_first_passage", "mr2ag_unjudged"]
    folders = {
        "leads": {"fresh": ("mr2ag", "mr2ag_text_scored"), "fit": ("mr2ag",), "fit_text": ("mr2ag_text_scored",)},
        "leads_by_images": {
            "fresh_by_images": ("mr2ag", "mr2ag_text_scored"),
            "fit_by_images": ("mr2ag",),
            "fit_by_images_text": ("mr2ag_text_scored",),
            **{f"{stage}_by_images_{seed}": ("mr2ag",) for stage in ("fresh", "fit") for seed in SEEDS},
            **{folder: ("mmkb_rag",) for folder in BY_IMAGES if "mmkb" in folder or "retrieved" in folder},
        },
    }
    assert set(folders["leads_by_images"]) == set(BY_IMAGES)
    for name, pipelines in folders.items():
        several = [f"{pipeline} ({RUN / folder})" for folder, ran in pipelines.items() for pipeline in ran]
        record = {"leads": {"parts": {"overall": dict.fromkeys([*ran_once, *controls, *several], ROW)}}}
        (tmp_path / RUN / name).mkdir(parents=True)
        (tmp_path / RUN / name / "compare.json").write_text(json.dumps(record))
    by_titles, by_images = pocket.figures_of(tmp_path).values()
    assert set(by_images) == set(pocket.TITLES)
    only_by_images = {name for name in pocket.TITLES if "mmkb_rag" in name or name.rstrip(")")[-1].isdigit()}
    assert set(by_titles) == set(pocket.TITLES) - only_by_images
    assert BEST_READER in by_titles
