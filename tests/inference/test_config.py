import contextlib
import io
import json
from pathlib import Path

import pytest

from reflectune.core.config import find_problems, parse_config
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.formats.dataset import write_questions
from reflectune.inference.config import ModelSettings
from reflectune.inference.evaluate import evaluate
from reflectune.inference.pipelines.registry import all_forms, all_recipes, pipeline_settings
from reflectune.inference.running.config import AllPipelines, AnswerConfig, EvaluateConfig
from reflectune.models.names import recorded_scheme
from reflectune.models.remote.endpoint import ConnectionKeys
from reflectune.retrieval.rerankers.config import RerankerConfig

Q_FORMER = {"reranker": "q_former", "reranker_model": "/tmp"}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "dataset.json").write_text('{"fingerprint": "f", "metric": "infoseek"}')
    (tmp_path / "manifest.json").write_text("{}")
    return {"dataset": str(tmp_path), "index": str(tmp_path)}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "m", "base_model": "b"},
        {"base_model": "b", "pipelines": ["closed_book"], "index": ""},
        {"model": "m", "pipelines": ["mmkb_rag"], "answer_model": "tuned"},
    ],
    ids=["whole", "closed book needs no index and no checkpoint", "who answers itself needs no base model"],
)
def test_a_config_that_has_what_its_pipelines_need_has_no_problems(folders, keys: dict) -> None:
    assert find_problems(EvaluateConfig, {**folders, "output": "o", **keys}) == []


def test_names_stand_for_forms() -> None:
    forms = [*(f"naive_rag_{form}" for form in ("article", "articles", "passage", "passages")), "mr2ag"]
    assert EvaluateConfig(pipelines=["naive_rag", "mr2ag", "naive_rag_article"]).forms() == forms


def test_tuned_baselines_are_those_that_have_a_reader(folders, tmp_path) -> None:
    for name in "ab":
        write_json(tmp_path / name / "config.json", {})
        write_json(tmp_path / name / "scheme.json", {"name": "plain"})
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    readers = ["--plain_model", json.dumps({"article": a, "passage": b}), "--output", "o"]
    flags = [word for key, value in folders.items() for word in (f"--{key}", str(value))]
    config = parse_config(EvaluateConfig, [*flags, *readers, "--pipelines", "tuned_baselines"])
    assert set(config.forms()) == {"oracle_article_tuned", "naive_rag_article_tuned", "naive_rag_passage_tuned"}
    uses = {name: recipe.models(config).checkpoint(config) for name, recipe in config.recipes().items()}
    assert uses == {"naive_rag_article_tuned": a, "naive_rag_passage_tuned": b, "oracle_article_tuned": a}
    assert parse_config(EvaluateConfig, [*flags, "--plain_model", a, *readers[2:], "--pipelines", "closed_book_tuned"])


def test_without_splits_all_but_train_are_answered(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_questions(tmp_path, split, [Question(split, "a.png", "Who?", ("Ann",), split=split)])
    assert EvaluateConfig(dataset=str(tmp_path)).splits == ["test", "val"]
    assert EvaluateConfig(dataset=str(tmp_path), splits=["train"]).splits == ["train"]
    for split in ("val", "test"):
        (tmp_path / "questions" / f"{split}.parquet").unlink()
    assert EvaluateConfig(dataset=str(tmp_path)).splits == ["train"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipelines": ["mr3ag"]}, "unknown pipeline `mr3ag`"),
        ({"pipelines": []}, "`pipelines` is empty"),
        ({"model": ""}, "`model` is needed"),
        ({"base_model": ""}, "`base_model` is needed"),
        ({"index": ""}, "`index` is needed"),
        ({"pipelines": ["tuned_baselines"]}, "`plain_model` is needed by closed_book_tuned"),
        ({"plain_model": {"gold": "b"}}, "article, articles, passage, passages; found gold"),
        ({"plain_model": {"none": "no/such/x"}, "pipelines": ["closed_book_tuned"]}, "`plain_model` no/such/x is not"),
        (
            {"plain_model": {"none": "b"}, "pipelines": ["text_rag_tuned"]},
            "no checkpoint for text_rag_tuned, which reads passages",
        ),
        (
            {"plain_model": {"none": "b"}, "pipelines": ["naive_rag_article_tuned", "tuned_baselines"]},
            "no checkpoint for naive_rag_article_tuned, which reads article",
        ),
        ({"pipelines": ["mr2ag_oracle"], "model": ""}, "`model` is needed by mr2ag_oracle"),
        ({"reranker": "cross_encoder"}, "needs `reranker_model`"),
        (
            {**Q_FORMER, "pipelines": ["controls", "mr2ag"]},
            "reads images, and mr2ag_first_passage, mr2ag_text_scored rerank",
        ),
        ({**Q_FORMER, "pipelines": ["mmkb_rag"], "documents_by": "reranker"}, "and mmkb_rag rerank by texts alone"),
        ({**Q_FORMER, "pipelines": ["mrag"], "unit": "passage"}, "and mrag rerank by texts alone"),
        ({**Q_FORMER, "pipelines": ["mrag_agent"], "unit": "passage"}, "and mrag_agent rerank by texts alone"),
        ({"extract_answer": True}, "`extract_answer` shortens a detailed answer"),
        ({"output": ""}, "`output` is needed"),
        ({"dataset": ""}, "`dataset` is needed"),
        ({"dataset": "/nowhere"}, "no dataset.json"),
        ({"index": "/nowhere"}, "no manifest.json"),
        ({"gamma": 1.5}, "`gamma` must be between 0 and 1"),
        ({"limit": 0}, "`limit` must be at least 1"),
        ({"dtype": "float8"}, "`dtype` should be one of"),
        ({"device_map": "half"}, "'auto', 'balanced', 'balanced_low_0', 'sequential', found 'half'"),
        ({"k": -1}, "`k` must be auto or a number of documents"),
        ({"k": [3]}, "`k` must be auto or a number of documents"),
        ({"k": 11}, "`k` can be at most `documents`, 10, found 11"),
        ({"scheme": "m2rag"}, "`scheme` is one of mmkb_rag, mr2ag, reflectiva"),
        ({"scheme": "mmkb_rag"}, "mr2ag needs a checkpoint of scheme mr2ag"),
        ({"pipelines": ["mr2ag", "mmkb_rag"]}, "run them one by one"),
        ({"pipelines": ["mmkb_rag"], "base_model": ""}, "`base_model` is needed by mmkb_rag"),
        ({"pipelines": ["mmkb_rag"], "model": ""}, "`model` is needed by mmkb_rag"),
        ({"pipelines": ["mmkb_rag"], "index": ""}, "`index` is needed by mmkb_rag"),
        ({"pipelines": ["text_rag"]}, "needed by text_rag: build one with `reflectune build_index --rows passages`"),
        ({"text_index": "nowhere", "pipelines": ["text_rag"]}, "`text_index`: nowhere has no manifest.json"),
        ({"text_knowledge": "nowhere", "pipelines": ["text_rag"]}, "`text_knowledge`: nowhere has no kb.json"),
    ],
)
def test_each_problem_is_named(folders, change: dict, words: str) -> None:
    values = {**folders, "model": "m", "base_model": "b", "output": "o", **change}
    assert [problem for problem in find_problems(EvaluateConfig, values) if words in problem]


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launch_of_several_processes_spreads_no_model(folders, monkeypatch: pytest.MonkeyPatch, variable) -> None:
    values = {**folders, "model": "m", "base_model": "b", "output": "o"}
    monkeypatch.setenv(variable, "1")
    assert find_problems(EvaluateConfig, dict(**values, device_map="auto")) == []
    monkeypatch.setenv(variable, "2")
    assert find_problems(EvaluateConfig, dict(**values)) == []
    (problem,) = find_problems(EvaluateConfig, dict(**values, device_map="auto"))
    assert problem.startswith("`device_map: auto` has one process use all GPUs, and this launch has 2")
    probing = ProbeConfig(dataset=folders["dataset"], index=folders["index"], model="m", output="o", device_map="auto")
    assert problem in probing.problems()


def test_all_problems_come_at_once(folders) -> None:
    found = find_problems(EvaluateConfig, {**folders, "output": "o", "gamma": 2, "top_n": 0})
    assert len(found) == 4  # gamma, top_n, model, base_model


def test_a_checkpoint_that_no_pipeline_reads_need_not_be_made_yet(folders) -> None:
    config = EvaluateConfig(**folders, model="m", base_model="b", plain_model="runs/not/yet", output="o")
    assert config.problems() == []
    config = config.model_copy(update={"pipelines": ["closed_book", "tuned_baselines"]})
    assert [problem for problem in config.problems() if problem.startswith("`plain_model` runs/not/yet")]


def test_a_probe_does_not_rerank_by_images(folders) -> None:
    probe = {**folders, **Q_FORMER, "model": "m", "output": "o"}
    problems = find_problems(ProbeConfig, {**probe, "documents_by": "reranker"})
    assert [problem for problem in problems if "reads images, and probes rerank by texts alone" in problem]


def test_a_checkpoint_of_another_scheme_is_a_problem_of_the_config(folders, tmp_path: Path) -> None:
    write_json(tmp_path / "checkpoint/scheme.json", {"name": "mr2ag"})
    write_json(tmp_path / "checkpoint/config.json", {})
    asked = {**folders, "model": str(tmp_path / "checkpoint"), "base_model": "b", "output": "o"}
    (problem,) = find_problems(EvaluateConfig, {**asked, "pipelines": ["mmkb_rag"]})
    assert "was trained with scheme mr2ag, and mmkb_rag needs a checkpoint of scheme mmkb_rag" in problem
    assert not find_problems(EvaluateConfig, {**asked, "pipelines": ["mr2ag"]})


def test_a_model_that_is_not_named_has_no_scheme_of_the_working_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "scheme.json").write_text('{"name": "mr2ag"}')
    monkeypatch.chdir(tmp_path)
    assert (recorded_scheme(str(tmp_path)), recorded_scheme("")) == ("mr2ag", "")


def test_what_a_server_computes_is_the_same_from_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflectune.core.devices.default_dtype", lambda device: "bfloat16")
    url = "http://localhost:8000/v1"
    found = [ModelSettings(server=server).precision for server in ("", url, {"m": url})]
    assert found == ["bfloat16", "float32", "bfloat16"]
    assert ModelSettings(server=url).hashed()["dtype"] == "float32"
    assert ModelSettings(server=url, dtype="float16").precision == "float16"


def test_an_untuned_model_is_no_plain_model(folders, tmp_path: Path) -> None:
    write_json(tmp_path / "base/config.json", {})
    asked = {**folders, "plain_model": str(tmp_path / "base"), "base_model": "b", "output": "o"}
    (problem,) = find_problems(EvaluateConfig, {**asked, "pipelines": ["closed_book_tuned"]})
    assert problem == f"`plain_model`: {tmp_path / 'base'} was not fine-tuned with scheme plain; see `build_plain`"
    write_json(tmp_path / "base/scheme.json", {"name": "plain"})
    assert not find_problems(EvaluateConfig, {**asked, "pipelines": ["closed_book_tuned"]})
    assert not find_problems(EvaluateConfig, {**asked, "pipelines": ["closed_book"]})


def test_an_answers_question_id_is_one_of_an_evaluation(folders) -> None:
    problems = find_problems(AnswerConfig, {**folders, "model": "m", "question": "q", "question_id": "q1"})
    assert problems[0].startswith("`question_id` selects a trace of `evaluation`")


@pytest.mark.parametrize(
    ("pipeline", "keys", "problem"),
    [
        ("closed_book", ("base_model",), ""),  # no index, and no fine-tuned model
        ("closed_book", (), "`base_model` is needed by closed_book"),
        ("naive_rag", ("base_model",), "`index` is needed by naive_rag_article, or `ranked_entities`"),
        ("oracle", ("base_model",), "`pipeline`: oracle_article needs a data set's gold evidence"),
        ("mr3ag", (), "`pipeline`: unknown pipeline `mr3ag`; one of "),
    ],
)
def test_an_answers_pipeline_needs_its_own_parts_alone(folders, tmp_path, pipeline, keys, problem) -> None:
    (tmp_path / "image.png").touch()
    asked = {"dataset": folders["dataset"], "image": str(tmp_path / "image.png"), "question": "q"}
    problems = find_problems(AnswerConfig, {**asked, "pipeline": pipeline, **dict.fromkeys(keys, "b")})
    assert [found.startswith(problem) for found in problems] == [True] * bool(problem), problems


@pytest.mark.parametrize(("pipeline", "has_gamma", "has_iterations"), [("", True, False), ("pmsr", False, True)])
def test_an_answers_help_has_the_keys_of_its_pipeline(pipeline, has_gamma, has_iterations) -> None:
    unread = AnswerConfig.unread_keys({"pipeline": pipeline})
    assert ("gamma" not in unread, "iterations" not in unread) == (has_gamma, has_iterations)


def test_an_answer_needs_an_image_and_a_question(folders) -> None:
    problems = find_problems(AnswerConfig, dict(**folders, model="m", question=" "))
    assert problems == ["`image` is needed", "`question` is needed"]


def test_the_scheme_is_that_of_the_tuned_pipeline() -> None:
    assert EvaluateConfig(pipelines=["closed_book", "mmkb_rag"]).scheme == "mmkb_rag"
    assert EvaluateConfig().scheme == "mr2ag"
    assert EvaluateConfig(pipelines=["closed_book"]).scheme == ""


@pytest.mark.parametrize(("written", "expected"), [("auto", "auto"), ("5", 5), ("'5'", 5)])
def test_k_is_a_word_or_a_number_in_yaml_and_on_the_command_line(folders, tmp_path, written, expected) -> None:
    needed = {**folders, "model": "m", "base_model": "b", "output": "o"}
    path = tmp_path / "config.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in needed.items()) + f"k: {written}\nret: false\n")
    config = parse_config(EvaluateConfig, argv=["--config", str(path)])
    assert (config.k, config.ret) == (expected, False)
    config = parse_config(EvaluateConfig, argv=["--config", str(path), "--k", "3", "--ret"])
    assert (config.k, config.ret) == (3, True)
    config = parse_config(EvaluateConfig, argv=["--config", str(path), "--k", "auto"])
    assert config.k == "auto"
    with pytest.raises(UserError, match="many"):
        parse_config(EvaluateConfig, argv=["--config", str(path), "--k", "many"])


@pytest.mark.parametrize("name", all_forms())
def test_a_pipelines_help_has_its_own_keys_and_shared_ones(name: str) -> None:
    unread, of_words = EvaluateConfig.unread_keys({"pipelines": [name]}), RerankerConfig.unread_keys({})
    own = pipeline_settings([form for form in all_forms()[name] if form in all_recipes()])
    read = own.model_fields.keys() - of_words
    assert not unread & {*read, "model", "output", "limit", "device", "metric", "pipelines"}
    assert unread == AllPipelines.model_fields.keys() - read - ConnectionKeys.model_fields.keys()


@pytest.mark.parametrize("kind", ["words", "embedding", "cross_encoder", "encoder", "q_former"])
def test_the_help_hides_the_keys_of_a_reranker_that_would_be_refused(kind: str) -> None:
    unread = EvaluateConfig.unread_keys({"pipelines": ["naive_rag"], "reranker": kind})
    others = {"reranker_pooling": "cls", "reranker_max_length": 8, "reranker_dtype": "bfloat16"}
    for key, value in others.items():
        problems = find_problems(RerankerConfig, {"reranker": kind, "reranker_model": "m", key: value})
        assert (key in unread) == any("doesn't read" in problem for problem in problems)
    assert ("reranker_model" in unread) == (kind == "words")


def evaluate_help(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        evaluate.main([*words, "--help"], "reflectune evaluate")
    return shown.getvalue()


def test_help_reads_the_pipelines_of_flags_and_files(tmp_path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("pipelines: [mr2ag]\nrows: 3\n")
    by_flag = evaluate_help("--pipelines", "mr2ag", "--gamma", "none")
    assert by_flag == evaluate_help("--config", str(path))
    assert "--gamma" in by_flag
    assert "--saturation" not in by_flag
    whole = evaluate_help("--pipelines", "mr3ag")
    assert "--saturation" in whole
    hidden, always_hidden = (int(shown.splitlines()[-1].split()[0]) for shown in (by_flag, whole))
    assert whole.count("\n  --") - by_flag.count("\n  --") == hidden - always_hidden


def test_help_without_pipelines_has_the_keys_of_those_that_run_by_default(tmp_path) -> None:
    shown = evaluate_help()
    default = EvaluateConfig.model_fields["pipelines"].default
    assert shown == evaluate_help("--pipelines", *default)
    assert shown == evaluate_help("--config", str(tmp_path / "none.yaml"))
    assert "--gamma" in shown
    assert "--saturation" not in shown
