import pytest
import torch

from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.tree_mask import layout_of
from reflectune.models.loading import load
from reflectune.train.data.examples import Collator, EncodedExamples


def test_a_batch_holds_every_tree_and_names_its_examples(base_model, data_folder, examples) -> None:
    loaded = load(str(base_model()), scheme="mr2ag")
    images = data_folder / "images"
    shared = EncodedExamples(examples, loaded.renderer, images, max_tokens=4096)
    separate = EncodedExamples(examples, loaded.renderer, images, share_prefix=False, max_tokens=4096)
    chosen = [3, 7, 20]  # four passages, four passages, and none
    collator = Collator(loaded.model)

    trees, rows = collator([shared[i] for i in chosen]), collator([separate[i] for i in chosen])

    assert trees["sample_ids"] == rows["sample_ids"] == ["k3", "k7", "v2"]
    for batch, count in ((trees, 3), (rows, 9)):
        layout = layout_of(batch["attention_mask"])
        assert len(batch["pixel_values"]) == len(layout.plain) + len(layout.trees) == count
        assert batch["input_ids"].shape == (1, batch["tokens"])
    weights = [float(batch["weights"].sum()) for batch in (trees, rows)]
    assert weights[0] == weights[1] > 0
    assert 0 < trees["tokens"] < rows["tokens"]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_packed_batch_has_the_loss_of_its_examples(family: str, base_model, data_folder, examples) -> None:
    loaded = load(str(base_model(family)), scheme="mr2ag")
    dataset = EncodedExamples(examples, loaded.renderer, data_folder / "images", max_tokens=4096)
    chosen = [dataset[i] for i in (3, 20, 7, 21)]

    batch = Collator(loaded.model)(chosen)
    with torch.no_grad():
        packed, _ = loss_terms(loaded.model, {k: v for k, v in batch.items() if k not in ("sample_ids", "tokens")})
        apart = sum(loss_terms(loaded.model, TreeCollator(loaded.model)(list(one.trees)))[0] for one in chosen)

    assert batch["input_ids"].shape == (1, batch["tokens"])
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-5)
