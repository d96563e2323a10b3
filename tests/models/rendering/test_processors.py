import torch

from reflectune.models.weights.pretrained import ImageOnlyQwen2VLProcessor


def test_it_survives_saving(make, tmp_path):
    processor = make.processor("qwen2_vl")
    processor.save_pretrained(tmp_path)
    again = ImageOnlyQwen2VLProcessor.from_pretrained(tmp_path)
    inputs = {"text": ["a<|image_pad|>b"], "images": [make.image()], "return_tensors": "pt"}
    for name, value in processor(**inputs).items():
        assert torch.equal(again(**inputs)[name], value)
    assert again.chat_template == processor.chat_template
