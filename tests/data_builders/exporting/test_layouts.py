"""The layouts of LLaMA-Factory, ms-swift and LLaVA, against the requirements of their documentation and loaders."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reflectune.core.config import parse_config
from reflectune.data_builders.exporting.layouts import LAYOUTS
from reflectune.data_builders.exporting.run import export
from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.settings.export import ExportConfig


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(data: Path, to: Any, output: Path, images: Any = "absolute") -> Path:
    export(ExportConfig(data=str(data), to=to, output=str(output), images=images))
    return output


@pytest.mark.parametrize("images", ["absolute", "copy"])
def test_llamafactory_reads_every_row_by_its_dataset_info(reflected: Path, tmp_path: Path, images: str) -> None:
    """Read rows as `SharegptDatasetConverter`: tags from the info, alternating turns, a placeholder an image."""
    output = write(reflected, "llamafactory", tmp_path / "out", images)
    info = json.loads((output / "dataset_info.json").read_text())["mr2ag_train"]
    assert info["formatting"] == "sharegpt"
    tags, columns = info["tags"], info["columns"]
    rows = lines(output / info["file_name"])
    assert len(rows) == 3 + 2 + 2 + 3 + 3  # a conversation is a row a round
    for row in rows:
        messages = row[columns["messages"]]
        roles = [message[tags["role_tag"]] for message in messages]
        assert roles == [tags["user_tag"], tags["assistant_tag"]] * (len(messages) // 2)
        text = "".join(message[tags["content_tag"]] for message in messages)
        assert text.count("<image>") == len(row[columns["images"]]) == 1
        assert (output / row[columns["images"]][0]).is_file()  # media_dir, as os.path.join takes it


@pytest.mark.parametrize("to", LAYOUTS)
def test_a_repeated_export_has_the_same_bytes(reflected: Path, tmp_path: Path, to: str) -> None:
    output = write(reflected, to, tmp_path / "out", "copy")
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    argv = ["--data", str(reflected), "--to", to, "--output", str(output), "--images", "copy"]
    export(parse_config(ExportConfig, argv=argv))
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_llamafactorys_yaml_masks_the_history_and_names_data_and_tokens(reflected: Path, tmp_path: Path) -> None:
    output = write(reflected, "llamafactory", tmp_path / "out")
    settings = yaml.safe_load((output / "sft.yaml").read_text())
    assert settings["mask_history"] is True
    assert settings["dataset"] in json.loads((output / "dataset_info.json").read_text())
    assert (output / "tokens.txt").read_text().splitlines() == list(MR2AG.tokens.values())
    assert ",".join(MR2AG.tokens.values()) in (output / "sft.yaml").read_text()


@pytest.mark.parametrize("images", ["absolute", "copy"])
def test_ms_swift_reads_for_each_turn_if_it_counts(reflected: Path, tmp_path: Path, images: str) -> None:
    output = write(reflected, "ms-swift", tmp_path / "out", images)
    rows = lines(output / "train.jsonl")
    assert len(rows) == 2 + 1 + 1 + 1 + 2  # one row per passage, and one for each question answered by looking
    for row in rows:
        assert set(row) == {"messages", "images"}
        assert sum(message["content"].count("<image>") for message in row["messages"]) == len(row["images"]) == 1
        assert (output / row["images"][0]).is_file()  # ROOT_IMAGE_DIR is the folder
        for message in row["messages"]:
            assert set(message) == {"role", "content", *(["loss"] if message["role"] == "assistant" else [])}
    gates = [row["messages"][1]["loss"] for row in rows if row["messages"][1]["content"] == "[Retrieval]"]
    assert gates == [True, False, True, False]
    declined = [row["messages"][1] for row in rows if row["messages"][1]["content"].startswith("[No Retrieval]")]
    assert [message["loss"] for message in declined] == [True, True, True]
    assert [[turn.get("loss") for turn in row["messages"]] for row in rows if len(row["messages"]) == 6] == [
        [None, True] * 3
    ]
    assert all(row["messages"][-1]["loss"] for row in rows)


@pytest.mark.parametrize("images", ["absolute", "copy"])
def test_llava_reads_an_array_of_human_and_gpt(reflected: Path, tmp_path: Path, images: str) -> None:
    """Read rows as `LazySupervisedDataset` and `preprocess_v1`, which split at "ASSISTANT: " and "</s>"."""
    output = write(reflected, "llava", tmp_path / "out", images)
    rows = json.loads((output / "train.json").read_text(encoding="utf-8"))
    assert len(rows) == 2 + 1 + 1 + 1 + 2
    for row in rows:
        assert set(row) == {"id", "image", "conversations"}
        assert (output / row["image"]).is_file()  # os.path.join(image_folder, image)
        speakers = [turn["from"] for turn in row["conversations"]]
        assert speakers == ["human", "gpt"] * (len(speakers) // 2)
        values = [turn["value"] for turn in row["conversations"]]
        assert values[0].startswith("<image>\n")
        assert "".join(values).count("<image>") == 1
        assert not re.search("ASSISTANT:|</s>", "".join(values))


def replies_of_one_turn(output: Path) -> list[str]:
    """Return the reply of each row of an export whose rows have one question and one reply."""
    record = json.loads((output / "export.json").read_text())
    file = output / record["files"]["train"]
    rows = json.loads(file.read_text()) if file.suffix == ".json" else lines(file)
    assert record["rows"] == {"train": len(rows)}
    replies = []
    for row in rows:
        _, reply = row.get("conversations") or row.get("messages") or [*row["prompt"], *row["completion"]]
        replies.append(reply.get("content", reply.get("value")))
    return replies


@pytest.mark.parametrize("to", list(LAYOUTS))
def test_mmkb_rags_tasks_are_rows_of_one_turn(prompted: Path, tmp_path: Path, to: str) -> None:
    output = write(prompted, to, tmp_path / "out", "copy")
    replies = replies_of_one_turn(output)
    assert replies[:4] == ["[Ret]", "[Rel]", "[NoRel]", "1. It was founded in 1872."]
    assert len(replies) == 7
    assert (output / "tokens.txt").read_text().splitlines() == list(MMKB_RAG.tokens.values())


@pytest.mark.parametrize("to", list(LAYOUTS))
def test_plain_rows_have_no_tokens_and_need_none(plain: Path, tmp_path: Path, to: str) -> None:
    output = write(plain, to, tmp_path / "out", "copy")
    readme = (output / "README.md").read_text(encoding="utf-8")
    assert replies_of_one_turn(output) == ["1872", "1872", "blue && red", "It is a lake."]
    assert "must be single tokens" not in readme
    assert "scheme=" not in readme


def test_a_second_split_is_added_to_the_first(reflected: Path, tmp_path: Path) -> None:
    output = write(reflected, "llamafactory", tmp_path / "out")
    (reflected / "val.parquet").write_bytes((reflected / "train.parquet").read_bytes())
    export(ExportConfig(data=str(reflected), to="llamafactory", output=str(output), split="val"))
    assert set(json.loads((output / "dataset_info.json").read_text())) == {"mr2ag_train", "mr2ag_val"}
    assert json.loads((output / "export.json").read_text())["rows"] == {"train": 13, "val": 13}


def test_llavas_script_gives_a_language_model_the_tokens(reflected: Path, tmp_path: Path, monkeypatch) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    output = write(reflected, "llava", tmp_path / "out")
    tokenizer = train_tokenizer(["a gold tower"], 280, "clip")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "vicuna")
    monkeypatch.setattr(sys, "argv", ["add_tokens.py", str(tmp_path / "vicuna"), str(tmp_path / "made")])
    runpy.run_path(str(output / "add_tokens.py"), run_name="__main__")
    made, known = AutoTokenizer.from_pretrained(tmp_path / "made"), len(tokenizer)
    assert made.convert_tokens_to_ids(list(MR2AG.tokens.values())) == list(range(known, known + 4))
    rows = LlamaForCausalLM.from_pretrained(tmp_path / "made").get_output_embeddings().weight
    assert rows.shape[0] == known + 4
    assert len({tuple(row.tolist()) for row in rows[known:]}) == 4
