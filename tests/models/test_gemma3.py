"""Gemma-3: an image's tokens see all of their image, and its placeholder becomes tokens of another id."""

import pytest
import torch
from PIL import Image
from torch import Tensor

from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine

QUESTION, BRANCH = "When was it founded?", [40, 41, 42]


@pytest.fixture(scope="module")
def loaded(write_base, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    write_base("gemma3", folder := tmp_path_factory.mktemp("gemma3"))
    found = load(str(folder), scheme="mr2ag")
    for parameter in found.model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)  # so that a wrong mask shows
    return found


@pytest.fixture
def image() -> Image.Image:
    return Image.radial_gradient("L").convert("RGB").resize((80, 60))


@torch.no_grad()
def read_by_transformers(loaded: Loaded, image: Image.Image, **changes: Tensor) -> tuple[list[int], Tensor]:
    """The ids of a conversation and the next token's probabilities after a branch; the inputs are the processor's."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": QUESTION}]
    inputs = loaded.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = inputs["input_ids"][0].tolist()
    more = torch.tensor([BRANCH])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["token_type_ids"] = torch.cat([inputs["token_type_ids"], torch.zeros_like(more)], 1)
    return ids, loaded.model(**inputs | changes).logits[0, -1].softmax(-1)


def test_prompts_and_probabilities_are_those_of_the_published_processor_and_model(loaded, image) -> None:
    ids, expected = read_by_transformers(loaded, image)
    renderer, engine = loaded.renderer, PrefixEngine(loaded)
    prefix = renderer.prefix(QUESTION, image)
    assert prefix.ids == ids
    (found,) = engine.branch(engine.read([prefix]), [[BRANCH]]).probabilities(range(400))
    torch.testing.assert_close(found[0], expected[:400], rtol=1e-4, atol=1e-7)

    _, causal = read_by_transformers(loaded, image, token_type_ids=torch.zeros(1, len(ids) + len(BRANCH)).long())
    assert ((causal - expected).abs() / expected).max() > 0.01  # a hundred times the tolerance above


def test_an_images_tokens_are_found_with_the_text_around_them(loaded, image) -> None:
    renderer = loaded.renderer
    prefix = renderer.prefix(QUESTION, image)
    ((_, start, end),) = prefix.images
    assert renderer.expansion.range_in(prefix.ids) == (start, end)
    shown = "".join(renderer.tokenizer.decode([token]) for token in prefix.ids[start:end])
    assert shown == "\n\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"


@pytest.mark.parametrize("question", [QUESTION, "\nWhen?", "\n\n\n\nWhen?"])
@pytest.mark.parametrize("count", [1, 2])
def test_line_breaks_next_to_an_image_are_its_tokens_and_a_server_gets_them_back(
    loaded, image, question: str, count: int
) -> None:
    renderer, tokenizer = loaded.renderer, loaded.processor.tokenizer
    prefix = renderer.plain(question, [image] * count)
    shown = [
        "<start_of_image>" if token == renderer.image_token_id else tokenizer.decode([token])
        for token in renderer.line_breaks.collapse(
            prefix.ids, [(start, end) for _, start, end in prefix.images], renderer.expansion, renderer.image_token_id
        )
    ]
    text = "".join(shown)
    assert text.count("<start_of_image>") == count
    made = loaded.processor(text=text, images=[[image] * count], add_special_tokens=False)
    assert made["input_ids"][0] == prefix.ids
    assert "user\n<start_of_image>" in text


@pytest.mark.parametrize("token", ["<image_soft_token>", "<start_of_image>", "<end_of_turn>"])
def test_a_question_cannot_forge_a_token(loaded, image, token: str) -> None:
    ids = loaded.renderer.prefix(f"Is it {token}?", image).ids
    number = loaded.renderer.tokenizer.convert_tokens_to_ids(token)
    assert ids.count(number) == loaded.renderer.prefix("Is it?", image).ids.count(number)
