import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import load_reranker

QUESTIONS = ["What does the owl eat?", "Is it tall?"]
MEAN, CLS = (TextSettings(pooling=pooling) for pooling in ("mean", "cls"))


@pytest.fixture(params=["words", "embedding", "cross_encoder"])
def reranker(request, bert_folder, cross_folder) -> Reranker:
    folder = {"words": "", "embedding": bert_folder, "cross_encoder": cross_folder}[request.param]
    return load_reranker(request.param, folder, MEAN)


def scores_by_id(ranked) -> dict[str, float]:
    return {one.passage.id: one.score for one in ranked}


# What holds of every reranker.


def test_every_passage_comes_back_best_first_with_its_score(reranker, passages) -> None:
    for ranked in reranker.rank(QUESTIONS, [passages, passages[:2]]):
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    first, second = reranker.rank(QUESTIONS, [passages, passages[:2]])
    assert {one.passage for one in first} == set(passages)
    assert {one.passage for one in second} == set(passages[:2])


def test_fewer_are_the_first_of_all(reranker, passages) -> None:
    (whole,) = reranker.rank(QUESTIONS[:1], [passages])
    for top_k in (1, 3, 100):
        assert reranker.rank(QUESTIONS[:1], [passages], top_k) == [whole[:top_k]]


def test_equal_passages_have_equal_scores_and_keep_their_order(reranker, passages) -> None:
    twins = [dataclasses.replace(passages[0], section=number) for number in (7, 8, 9)]
    (ranked,) = reranker.rank(QUESTIONS[:1], [twins])
    assert [one.passage.section for one in ranked] == [7, 8, 9]
    assert len({one.score for one in ranked}) == 1


def test_nothing_to_rank_is_no_error(reranker, passages) -> None:
    assert reranker.rank([], []) == []
    assert reranker.rank(QUESTIONS, [[], []]) == [[], []]
    empty, full = reranker.rank(QUESTIONS, [[], passages])
    assert (len(empty), len(full)) == (0, len(passages))


# What the two models compute.


@pytest.mark.parametrize(
    ("pooling", "side", "model_type"),
    [
        ("mean", "left", "bert"),
        ("mean", "right", "llama"),
        ("last", "left", "llama"),
        ("last", "right", "bert"),
        ("cls", "left", "bert"),
    ],
)
def test_a_bi_encoders_score_is_the_cosine_of_pooled_states(
    bert_folder, llama_folder, passages, tmp_path, pooling, side, model_type
) -> None:
    """Written out, one text at a time and without padding; whatever side a repository pads on."""
    folder = bert_folder if model_type == "bert" else llama_folder
    shutil.copytree(folder, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side=side)
    tokenizer.save_pretrained(tmp_path / "model")
    model = AutoModel.from_pretrained(folder).eval()

    def vector(text: str) -> torch.Tensor:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[pooling]

    settings = TextSettings(pooling=pooling, query_prefix="query: ", passage_prefix="passage: ", token_budget=60)
    (ranked,) = load_reranker("embedding", str(tmp_path / "model"), settings).rank(QUESTIONS[:1], [passages])
    query = vector(f"query: {QUESTIONS[0]}")
    for one in ranked:
        text = vector(f"passage: {passage_text(one.passage)}")
        assert one.score == pytest.approx(torch.cosine_similarity(query, text, dim=0).item(), abs=1e-5)


def test_a_cross_encoders_score_is_its_logit(cross_folder, passages) -> None:
    tokenizer = AutoTokenizer.from_pretrained(cross_folder)
    model = AutoModelForSequenceClassification.from_pretrained(cross_folder).eval()
    settings = TextSettings(token_budget=100)
    (ranked,) = load_reranker("cross_encoder", cross_folder, settings).rank(QUESTIONS[:1], [passages])
    for one in ranked:
        with torch.no_grad():
            logits = model(**tokenizer(QUESTIONS[0], passage_text(one.passage), return_tensors="pt")).logits
        assert one.score == pytest.approx(logits.item(), abs=1e-5)

    half = load_reranker("cross_encoder", cross_folder, dataclasses.replace(settings, dtype="bfloat16"))
    scores = torch.tensor([one.score for one in half.rank(QUESTIONS[:1], [passages])[0]])
    assert not torch.equal(scores, scores.bfloat16().float())  # the last product is one of float32


@pytest.fixture(params=["embedding", "cross_encoder"])
def model(request, bert_folder, cross_folder) -> tuple[str, str]:
    return request.param, bert_folder if request.param == "embedding" else cross_folder


def test_batches_decide_no_score(model, passages) -> None:
    kind, folder = model
    whole = load_reranker(kind, folder, MEAN)
    single = load_reranker(kind, folder, dataclasses.replace(MEAN, token_budget=1))
    one, other = (each.rank(QUESTIONS, [passages, passages]) for each in (whole, single))
    for a, b in zip(one, other, strict=True):
        assert scores_by_id(a) == pytest.approx(scores_by_id(b), abs=1e-5)
    assert whole.fingerprint == single.fingerprint


def test_a_long_passage_is_cut_to_what_is_asked_or_read(model, passages) -> None:
    kind, folder = model
    long = dataclasses.replace(passages[0], text="mice " * 500)
    longer = dataclasses.replace(long, text="mice " * 500 + "voles " * 500)
    reranker = load_reranker(kind, folder, MEAN)  # reads 64 tokens
    (ranked,) = reranker.rank(QUESTIONS[:1], [[long, longer]])
    assert ranked[0].score == ranked[1].score
    short = load_reranker(kind, folder, dataclasses.replace(MEAN, max_length=24))
    assert short.rank(QUESTIONS[:1], [[long]])[0][0].score != ranked[0].score


# Names, repositories, and what is wrong with them.


def test_pooling_is_what_the_repository_declares(bert_folder, passages, tmp_path) -> None:
    shutil.copytree(bert_folder, tmp_path / "bert")
    (tmp_path / "bert/1_Pooling").mkdir()
    declared = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True, "word_embedding_dimension": 16}
    (tmp_path / "bert/1_Pooling/config.json").write_text(json.dumps(declared))
    auto, cls = (load_reranker("embedding", str(tmp_path / "bert"), each) for each in (TextSettings(), CLS))
    assert auto.rank(QUESTIONS[:1], [passages]) == cls.rank(QUESTIONS[:1], [passages])
    assert auto.fingerprint == cls.fingerprint
    declared["pooling_mode_max_tokens"] = True
    (tmp_path / "bert/1_Pooling/config.json").write_text(json.dumps(declared))
    with pytest.raises(UserError, match="pooling_mode_max_tokens; mean, last and cls are known"):
        load_reranker("embedding", str(tmp_path / "bert"))


def test_pooling_that_nobody_declares_must_be_chosen(bert_folder) -> None:
    with pytest.raises(UserError, match="model card and set `reranker_pooling`"):
        load_reranker("embedding", bert_folder)


def test_a_classifier_of_two_labels_is_refused(cross_folder, bert_folder) -> None:
    with pytest.raises(UserError, match=r"2 labels.*`reranker: embedding`"):
        load_reranker("cross_encoder", bert_folder)


def test_a_cross_encoder_without_its_head_is_refused(bert_folder, tmp_path) -> None:
    shutil.copytree(bert_folder, tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps({**config, "id2label": {"0": "fits"}}))
    with pytest.raises(UserError, match=r"lacks \d+ of its weights, e\.g\. bert\.pooler|classifier"):
        load_reranker("cross_encoder", str(tmp_path / "bert"))


def test_fingerprints_follow_decisive_settings_scores(bert_folder, llama_folder, cross_folder) -> None:
    asked = dataclasses.replace(MEAN, query_prefix="query: ")
    half = dataclasses.replace(MEAN, dtype="bfloat16")
    pairs = [(bert_folder, each) for each in (MEAN, CLS, asked, half)] + [(llama_folder, MEAN)]
    made = [load_reranker("words"), *(load_reranker("embedding", folder, settings) for folder, settings in pairs)]
    made.append(load_reranker("cross_encoder", cross_folder))
    assert len({each.fingerprint for each in made}) == len(made)
    assert load_reranker("embedding", bert_folder, MEAN).fingerprint == made[1].fingerprint


def test_a_device_or_dtype_that_is_not_there_is_refused(bert_folder) -> None:
    with pytest.raises(UserError, match="device `abacus`"):
        load_reranker("embedding", bert_folder, MEAN, device="abacus")
    with pytest.raises(UserError, match="dtype `int4`"):
        load_reranker("embedding", bert_folder, dataclasses.replace(MEAN, dtype="int4"))


# From a config.


def test_a_configs_problems_are_reported_together() -> None:
    arguments = "--reranker embedding --reranker_max_length 0 --reranker_token_budget 0 --reranker_dtype int4".split()
    with pytest.raises(UserError) as caught:
        parse_config(RerankerConfig, argv=arguments)
    for part in ("needs `reranker_model`", "`reranker_max_length`", "`reranker_token_budget`", "`reranker_dtype`"):
        assert part in str(caught.value)
    with pytest.raises(UserError, match="`reranker: words` uses no model"):
        parse_config(RerankerConfig, argv=["--reranker_model", "miniature/text"])


def test_a_key_that_the_reranker_does_not_read_is_refused() -> None:
    keys = "--reranker_pooling cls --reranker_max_length 64 --reranker_dtype bfloat16".split()
    with pytest.raises(UserError, match="`reranker: words` doesn't read `reranker_pooling`, `reranker_max_length`, "):
        parse_config(RerankerConfig, argv=keys)
    named = ["--reranker", "cross_encoder", "--reranker_model", "miniature/text", *keys]
    with pytest.raises(UserError, match="`reranker: cross_encoder` doesn't read `reranker_pooling`; leave it out"):
        parse_config(RerankerConfig, argv=named)


def test_every_process_adds_up_a_bm25_score_to_the_same_digit() -> None:
    """Scores go into traces; the order of a set of words differs from process to process."""
    program = (
        "from reflectune.core.types import Passage\n"
        "from reflectune.retrieval.rerankers.words import bm25_scores\n"
        "words = [f'w{i}' for i in range(60)]\n"
        "made = [Passage('e', i, 0, '', '', '', ' '.join(words[: 7 + 5 * i])) for i in range(11)]\n"
        "print([score.hex() for score in bm25_scores(' '.join(words), made)])\n"
    )
    root = str(Path(__file__).parents[3] / "src")
    ways = [{"PYTHONHASHSEED": str(seed), "PYTHONPATH": root} for seed in range(2)]
    assert len({subprocess.check_output([sys.executable, "-c", program], env=way) for way in ways}) == 1
