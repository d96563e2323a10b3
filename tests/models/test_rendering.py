from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.types import FollowUp, Passage
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering import turns as layouts
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.rendering.turns import Gap
from reflectune.models.rendering.untrusted import SafeTokenizer
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.passages import PassageScheme, conversation_texts
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.schemes.prompts import PromptScheme

KINDS = ["llava", "qwen2_vl", "llama", "llama_legacy", "qwen3_5"]
QUESTION = "When was the tower built?"
STYLES = ["short", "list", "free"]
FORGERIES = [
    "[Relevant]", " [Irrelevant] ", "[Retrieval]", "[No Retrieval]", "<image>", "<s>", "</s>", "<pad>", "<unk>",
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>", "<|im_end|>\n<|im_start|>",
    "USER:", "ASSISTANT:", "\ufdd05\ufdd1", "\ufdd2question\ufdd3", "\ud800", "\x00", "{question}", "{{ bos_token }}",
    "{% if x %}",
]  # fmt: skip
untrusted = st.lists(st.sampled_from(FORGERIES) | st.text(max_size=6), min_size=1, max_size=8).map("".join)
plain_text = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co", "Cc"], exclude_characters="[]<>"), max_size=40)
slow_inputs = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=KINDS)
def renderer(request, make):
    return make.renderer(request.param)


def test_an_image_that_was_processed_ahead_is_rendered_the_same(renderer: Renderer, draw_image, monkeypatch) -> None:
    """Once, in whatever thread; another renderer, or a copy of the image, processes it for itself."""
    image = draw_image(3)
    expected = renderer.prefix(QUESTION, image.copy())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(renderer.preparer(), [image] * 8))
    called: list[int] = []
    processor = renderer.processor
    monkeypatch.setattr(renderer, "processor", lambda *args, **inputs: called.append(1) or processor(*args, **inputs))
    renderer.processor.image_token = processor.image_token
    for _ in range(2):
        found = renderer.prefix(QUESTION, image)
        assert found.ids == expected.ids
        assert found.vision.keys() == expected.vision.keys()
        for name, value in expected.vision.items():
            assert torch.equal(found.vision[name], value)
        found.vision.clear()
    assert not called
    renderer.prefix(QUESTION, image.copy())
    assert called


@pytest.fixture(scope="module", params=[MMKB_RAG, PLAIN], ids=lambda scheme: scheme.name)
def prompted(request, make):
    return make.renderer("llava", request.param)


@pytest.fixture(scope="module")
def image(make):
    return make.image()


def special_ids(renderer: Renderer) -> set[int]:
    return {*renderer.tokenizer.all_special_ids, *renderer.token_ids.values(), renderer.image_token_id}


def encode(renderer: Renderer, example: ReflectionExample | PromptedExample, image) -> Tree:
    scheme = PassageScheme if isinstance(example, ReflectionExample) else PromptScheme
    return scheme.of(renderer).encode(renderer, example, image)


def supervised(segment: Segment) -> list[int]:
    return [label for label in segment.labels if label != IGNORE]


def same_specials(renderer: Renderer, benign: Tree, hostile: Tree) -> bool:
    """Return True if two trees have the same special tokens in the same order, read and supervised."""
    special = special_ids(renderer)
    found = [
        [[i for i in ids if i in special] for part in (tree.prefix, *tree.branches) for ids in (part.ids, part.labels)]
        for tree in (benign, hostile)
    ]
    return found[0] == found[1]


def missing_end(renderer: Renderer) -> str:
    """Return the text to add after the assistant's words: the end token, if the chat template has none there."""
    image, words = {"type": "image"}, {"type": "text", "text": "WORDS"}
    messages = [{"role": "user", "content": [image, words]}, {"role": "assistant", "content": [words]}]
    behind = renderer.processor.apply_chat_template(messages).rpartition("WORDS")[2]
    has_end = any(token in behind for token in renderer.tokenizer.all_special_tokens)
    return "" if has_end else renderer.tokenizer.eos_token


def before_words(renderer: Renderer) -> str:
    """Return the chat template's text between its cue and the assistant's words.

    Behind a special token nothing, where the tokenizer begins a word there by itself: Llama's legacy one.
    """
    if renderer.tokenizer.tokenize("</s> a")[-2:] == ["▁", "▁a"]:
        return ""
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Q"}]}
    said = {"role": "assistant", "content": [{"type": "text", "text": "WORDS"}]}
    cue = renderer.processor.apply_chat_template([asked], add_generation_prompt=True)
    return renderer.processor.apply_chat_template([asked, said]).removeprefix(cue).partition("WORDS")[0]


def ordinary(renderer: Renderer, turns, image, fill) -> list[int]:
    """Encode a conversation by transformers alone: apply_chat_template, then the processor on text and image."""
    messages, gap = [], before_words(renderer)
    for turn in turns:
        parts = (gap if isinstance(part, Gap) else part for part in turn.parts)
        text = "".join(part if isinstance(part, str) else fill[part.name] for part in parts)
        if turn.role == "assistant":
            text += missing_end(renderer)
        content = [{"type": "text", "text": text}]
        messages.append({"role": turn.role, "content": [{"type": "image"}, *content] if turn.image else content})
    text = renderer.processor.apply_chat_template(messages, add_generation_prompt=turns[-1].role == "user")
    lead = text.startswith(renderer.tokenizer.bos_token or "\0")
    return renderer.processor(text=[text], images=[image], add_special_tokens=not lead)["input_ids"][0]


@pytest.mark.parametrize("answer", ["pepper", "almond", "1871", "a red bus", "40 m"])
def test_an_answer_behind_a_token_is_the_tokens_that_a_base_model_answers_with(renderer, answer):
    """A base that has learned "almond" behind its cue would else have to spell " almond", of other tokens."""
    scheme = PassageScheme.of(renderer)
    passage = Passage("e", 0, 0, title="T", lead="", heading="", text="A text.")
    labels = scheme.passage_reply(renderer, Branch(passage, True, answer))[1]
    said = labels[labels.index(renderer.token_id("relevant")) + 1 :]
    assert said == renderer.reply_ids(answer)


# Untrusted text.


@slow_inputs
@given(text=untrusted)
def test_no_question_can_forge_a_token(renderer, image, text):
    benign = renderer.prefix("a", image).ids
    hostile = renderer.prefix(f"a{text}", image).ids
    special = special_ids(renderer)
    assert [i for i in hostile if i in special] == [i for i in benign if i in special]


@settings(slow_inputs, max_examples=60)
@given(text=untrusted, answer=untrusted)
def test_no_passage_or_answer_can_forge_a_token(renderer, image, text, answer):
    def tree(text, answer):
        branch = Branch(Passage("e", 0, 0, title=text, lead=text, heading=text, text=text), True, answer)
        return encode(renderer, ReflectionExample("x", "", "Why?", True, branches=(branch,)), image)

    assert same_specials(renderer, tree("a", "a"), tree(f"a{text}", f"a{answer}"))


@slow_inputs
@given(text=untrusted, answer=untrusted, style=st.sampled_from(STYLES))
def test_no_question_or_answer_can_forge_the_turns_without_retrieval(renderer, image, text, answer, style):
    def tree(question, answer):
        return encode(renderer, ReflectionExample("x", "", question, False, answer, style=style), image)

    hostile = tree(f"a{text}", f"a{answer}")
    assert same_specials(renderer, tree("a", "a"), hostile)
    gate = hostile.prefix.ids.index(renderer.token_id("no_retrieve"))
    reply = PassageScheme.of(renderer).direct_reply(renderer, f"a{answer}", style)[0]
    assert list(hostile.prefix.ids[gate:]) == reply


@slow_inputs
@given(texts=st.lists(untrusted, min_size=4, max_size=4))
def test_no_later_round_of_a_conversation_can_forge_a_token(renderer, image, texts):
    def tree(one, two, three, four):
        later = (FollowUp(f"a{one}", f"a{two}"), FollowUp(f"a{three}", f"a{four}"))
        return encode(renderer, ReflectionExample("x", "", "Why?", False, "a", style="free", follow_ups=later), image)

    assert same_specials(renderer, tree("", "", "", ""), tree(*texts))


@slow_inputs
@given(text=untrusted, answer=untrusted, style=st.sampled_from(STYLES))
def test_no_text_can_forge_a_token_where_an_answer_is_asked_for(prompted, image, text, answer, style):
    def tree(text, answer):
        document = Passage("e", 0, 0, title=text, lead=text, heading=text, text=text)
        branches = (PromptedBranch("vqa", reply=answer), PromptedBranch("vqa", (document,), reply=answer))
        return encode(prompted, PromptedExample("x", "", text, branches, style), image)

    assert same_specials(prompted, tree("a", "a"), tree(f"a{text}", f"a{answer}"))


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def safe(request, make):
    """A tokenizer of secret names, and the tokenizer itself."""
    tokenizer = make.renderer(request.param, None).tokenizer
    return SafeTokenizer(tokenizer, owned=[make.renderer(request.param, None).processor.image_token]), tokenizer


@slow_inputs
@given(text=untrusted)
def test_untrusted_text_survives_as_text(safe, text):
    safe_tokenizer, tokenizer = safe
    clean = safe_tokenizer.clean(text)
    token_ids = safe_tokenizer.encode_continuation(f" {clean}")
    assert tokenizer.decode(token_ids, clean_up_tokenization_spaces=False) == f" {clean}"


# Benign text becomes what it always becomes.


@slow_inputs
@given(question=plain_text, passage=plain_text, answer=plain_text)
def test_ids_are_those_of_the_ordinary_tokenisation(renderer, image, question, passage, answer):
    fill = {"question": f"Q{question.strip()}", "passage": f"P{passage.strip()}", "answer": f"A{answer.strip()}"}
    fill = {name: text.strip() for name, text in fill.items()}
    scheme = renderer.scheme
    read = scheme.passage_turns("short")
    for turns in (
        layouts.question_turns(),
        layouts.answer_turns(scheme.prompts, "list", documents=True),
        layouts.answer_turns(scheme.prompts, "short", documents=False),
        (*layouts.question_turns(), scheme.reply("no_retrieve", answer=True)),
        scheme.direct_turns("short"),
        (*scheme.direct_turns("list"), layouts.Turn("assistant", (layouts.ANSWER,))),
        read,
        (*read, scheme.reply("relevant", answer=True)),
    ):
        assert renderer.conversation(turns, fill, image).ids == ordinary(renderer, turns, image, fill)


@slow_inputs
@given(question=plain_text, passage=plain_text)
def test_a_branch_continues_its_prefix_as_one_text(renderer, image, question, passage):
    fill = {"question": f"Q{question}".strip(), "passage": f"P{passage}".strip()}
    read = Passage("e", 0, 0, title="", lead="", heading="", text=fill["passage"])
    token_ids = renderer.prefix(fill["question"], image).ids + PassageScheme.of(renderer).passage_branch(renderer, read)
    assert token_ids == ordinary(renderer, renderer.scheme.passage_turns("short"), image, fill)


@pytest.mark.parametrize("kind", KINDS)
def test_mmkb_prompts_continue_one_prefix(kind, make, image):
    renderer = make.renderer(kind, MMKB_RAG)
    prefix = renderer.question_prefix(QUESTION, image).ids
    passages = [make.passage("One."), make.passage("Two.")]
    for name, given_ in (("ret", []), ("srt", passages[:1]), ("mct", passages), ("summary", passages)):
        fill = {"question": QUESTION, "passage": layouts.documents_text(given_, numbered=name == "mct")}
        whole = ordinary(renderer, MMKB_RAG.prompt_turns(name, "short", documents=bool(given_)), image, fill)
        assert prefix + PromptScheme.of(renderer).prompt_branch(renderer, name, given_) == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", [MMKB_RAG, PLAIN], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("style", STYLES)
def test_p_vqa_is_what_a_plain_model_reads(kind, scheme, style, make, image):
    renderer, untuned = make.renderer(kind, scheme), make.renderer(kind, None)
    prefix = renderer.question_prefix(QUESTION, image).ids
    for passages in ([], [make.passage("One."), make.passage("Two.")]):
        whole = untuned.plain(QUESTION, image, passages, style).ids
        assert prefix + PromptScheme.of(renderer).prompt_branch(renderer, "vqa", passages, style) == whole
        assert renderer.plain(QUESTION, image, passages, style).ids == whole


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_without_retrieval_continues_its_prefix_as_one_text(renderer, image, style):
    turns = renderer.scheme.direct_turns(style)
    if style == "free":  # nothing is asked: the answer stands in the gate's turn
        assert PassageScheme.of(renderer).direct_branch(renderer, style) == [renderer.token_id("no_retrieve")]
    else:
        token_ids = renderer.prefix(QUESTION, image).ids + PassageScheme.of(renderer).direct_branch(renderer, style)
        assert token_ids == ordinary(renderer, turns, image, {"question": QUESTION})


ANSWERS = ("yellow", "cross", "d", "1758", "13 March 1758", "Kan\u014d Jigor\u014d", "dark red && blue", ".5", "'t")


def tails(renderer: Renderer) -> list[str]:
    """Words that the tokenizer joins to a letter before them: what is left of its tokens without their first."""
    words = filter(str.isascii, renderer.tokenizer.get_vocab())
    return sorted(word[1:] for word in words if word.isalpha() and len(word) > 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", [MR2AG, MMKB_RAG, PLAIN], ids=lambda scheme: scheme.name)
def test_a_reply_in_words_is_what_the_chat_template_makes_of_it(kind, scheme, make, image):
    """Its first letters too: some templates end their cue with a line break, and some put a space before a reply."""
    renderer, reply = make.renderer(kind, scheme), layouts.Turn("assistant", (layouts.ANSWER,))
    answers = [*ANSWERS, *tails(renderer)]
    assert len(answers) > len(ANSWERS)
    for answer in answers:
        if scheme is MR2AG:
            turns = scheme.direct_turns("short")
            example = ReflectionExample("v", "", QUESTION, False, answer=answer)
            token_ids = list(encode(renderer, example, image).prefix.ids)
        else:
            turns = layouts.answer_turns(scheme.prompts, "short", documents=False)
            prompted_example = PromptedExample("x", "", QUESTION, (PromptedBranch("vqa", reply=answer),))
            tree = encode(renderer, prompted_example, image)
            token_ids = [*tree.prefix.ids, *tree.branches[0].ids]
        whole = ordinary(renderer, (*turns, reply), image, {"question": QUESTION, "answer": answer})
        assert token_ids == whole[: len(token_ids)], answer


@slow_inputs
@given(text=untrusted)
def test_a_reply_is_read_back_as_it_was_written(renderer, text):
    clean = SafeTokenizer.clean(text)
    ids = renderer.reply_ids(text)
    shown = renderer.tokenizer.decode(ids[:-1], clean_up_tokenization_spaces=False)
    assert shown.removeprefix(" ") == clean
    assert ids[-1] == renderer.end_token_id


# How an answer is asked for.


WORDS = {"short": "with a single word or phrase.", "list": "using '&&' to connect multiple different answers."}


@pytest.mark.parametrize("kind", KINDS)
def test_no_gate_is_asked_after_an_instruction(kind, make, image):
    """The text before a gate is the same for every kind of answer, or the gate would learn the kinds."""
    reflected, prompted = make.renderer(kind, MR2AG), make.renderer(kind, MMKB_RAG)
    scheme = PromptScheme.of(prompted)
    asked = [*prompted.question_prefix(QUESTION, image).ids, *scheme.prompt_branch(prompted, "ret")]
    gates = [reflected.decode(reflected.prefix(QUESTION, image).ids), prompted.decode(asked)]
    for words in (*WORDS.values(), "Based on the retrieved", "Answer the question"):
        assert not any(words in text for text in gates)
    for style in STYLES:
        for name, passages in (("ret", []), ("srt", [make.passage()])):
            branch = scheme.prompt_branch(prompted, name, passages)
            assert scheme.prompt_branch(prompted, name, passages, style) == branch
        visual = ReflectionExample("v", "", QUESTION, False, answer="oak", style=style)
        for example in (visual, make.example(2, style=style)):
            trained = encode(reflected, example, image).prefix
            place = next(place for place, label in enumerate(trained.labels) if label != IGNORE)
            assert list(trained.ids[:place]) == reflected.prefix(QUESTION, image).ids


# What is read, and what is supervised.


def test_the_image_becomes_what_the_processor_makes_of_it(renderer, image):
    rendered = renderer.prefix(QUESTION, image)
    made = renderer.processor(text=[renderer.processor.image_token], images=[image], return_tensors="pt")
    assert rendered.ids.count(renderer.image_token_id) == (made["input_ids"] == renderer.image_token_id).sum()
    for name in rendered.vision:
        assert torch.equal(rendered.vision[name], made[name])
    assert "pixel_values" in rendered.vision


def test_the_gate_is_supervised_once_and_stands_in_the_prefix(renderer, image, make):
    tree = encode(renderer, make.example(3), image)
    gate, end = renderer.token_id("retrieve"), renderer.end_token_id
    assert supervised(tree.prefix) == [gate, end]
    assert all(gate not in branch.ids for branch in tree.branches)
    # Nothing stands between the assistant's cue and the token.
    assert list(tree.prefix.ids[: tree.prefix.ids.index(gate)]) == renderer.prefix(make.example(3).question, image).ids


def test_a_branch_supervises_verdict_answer_and_end(renderer, image, make):
    example = make.example(2)
    yes, no = encode(renderer, example, image).branches
    relevant, *answer, end = supervised(yes)
    assert relevant == renderer.token_id("relevant")
    assert end == renderer.end_token_id == yes.ids[-1]
    assert renderer.decode(answer) == example.branches[0].answer
    assert supervised(no) == [renderer.token_id("irrelevant"), end]


@pytest.mark.parametrize("style", ["short", "list"])
def test_a_visual_question_supervises_gate_and_answer_in_their_own_turns(renderer, image, style):
    tree = encode(renderer, ReflectionExample("v", "", QUESTION, False, answer="dark red", style=style), image)
    reply = renderer.reply_ids("dark red")
    assert tree.branches == ()
    assert supervised(tree.prefix) == [renderer.token_id("no_retrieve"), renderer.end_token_id, *reply]
    read = [*renderer.prefix(QUESTION, image).ids, *PassageScheme.of(renderer).direct_branch(renderer, style)]
    assert list(tree.prefix.ids) == [*read, *reply]


def test_a_visual_question_answered_freely_has_the_papers_one_turn(renderer, image):
    tree = encode(renderer, ReflectionExample("v", "", QUESTION, False, "It is dark red.", style="free"), image)
    labels = supervised(tree.prefix)
    assert tree.branches == ()
    assert (labels[0], labels[-1]) == (renderer.token_id("no_retrieve"), renderer.end_token_id)
    assert renderer.decode(labels[1:-1]) == "It is dark red."
    assert list(tree.prefix.ids[-len(labels) :]) == labels


TALK = (FollowUp("Is it tall?", "Yes, it is."), FollowUp("Who drew it?", "Ada Byron."))


def test_each_reply_of_a_conversation_is_supervised_from_its_gate_to_its_end(renderer, image):
    example = ReflectionExample("v", "", QUESTION, False, "In 1874.", style="free", follow_ups=TALK)
    tree = encode(renderer, example, image)
    gate, end = renderer.token_id("no_retrieve"), renderer.end_token_id
    runs = groupby(tree.prefix.labels, lambda label: label != IGNORE)
    spans = [list(labels) for is_supervised, labels in runs if is_supervised]
    assert tree.branches == ()
    assert [(span[0], span[-1]) for span in spans] == [(gate, end)] * 3
    assert [renderer.decode(span[1:-1]) for span in spans] == ["In 1874.", "Yes, it is.", "Ada Byron."]
    assert tree.prefix.ids[-1] == end
    assert tree.prefix.ids.count(gate) == 3
    alone = encode(renderer, replace(example, follow_ups=()), image).prefix
    assert tree.prefix.ids[: len(alone.ids)] == alone.ids
    assert tree.prefix.labels[: len(alone.ids)] == alone.labels


def test_a_conversation_is_what_the_chat_template_makes_of_it(renderer, image):
    example = ReflectionExample("v", "", QUESTION, False, "In 1874.", style="free", follow_ups=TALK)
    turns = renderer.scheme.conversation_turns(len(TALK))
    expected = ordinary(renderer, turns, image, {"question": QUESTION, **conversation_texts("In 1874.", TALK)})
    ids = list(encode(renderer, example, image).prefix.ids)

    assert ids == expected[: len(ids)]
    assert len(expected) - len(ids) <= 2  # what a template writes behind the last end of turn


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"follow_ups": (FollowUp(" ", "Yes."),)}, "has no question"),
        ({"follow_ups": (FollowUp("Is it?", " "),)}, "`Is it\\?` of a conversation has no answer"),
        ({"style": "short"}, "after a free answer alone"),
    ],
)
def test_a_conversation_that_lacks_a_text_or_asks_for_a_word_is_refused(make, image, changes, message):
    example = ReflectionExample("v", "", QUESTION, False, "In 1874.", style="free", follow_ups=TALK)
    with pytest.raises(UserError, match=message):
        encode(make.renderer("llava"), replace(example, **changes), image)


@pytest.mark.parametrize("style", STYLES)
def test_training_and_inference_read_the_same_ids(renderer, image, make, style):
    example = make.example(3, style=style)
    tree = encode(renderer, example, image)
    prefix = renderer.prefix(example.question, image).ids
    for branch, segment in zip(example.branches, tree.branches, strict=True):
        verdict = renderer.token_id("relevant" if branch.relevant else "irrelevant")
        read = [*prefix, *PassageScheme.of(renderer).passage_branch(renderer, branch.passage, style), verdict]
        assert [*tree.prefix.ids, *segment.ids][: len(read)] == read


ONE, TWO = (Passage("e", 0, number, "T", "", "", text) for number, text in enumerate(("One.", "2.")))
PROMPTED = (
    PromptedBranch("ret", role="retrieve"),
    PromptedBranch("srt", (ONE,), role="irrelevant"),
    PromptedBranch("mct", (ONE, TWO), "", "2. Two."),
    PromptedBranch("vqa", reply="[Rel] 1872"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", STYLES)
def test_mmkb_supervises_replies_behind_the_prompts_that_inference_reads(kind, style, make, image):
    renderer = make.renderer(kind, MMKB_RAG)
    tree = encode(renderer, PromptedExample("q", "", QUESTION, PROMPTED, style), image)
    assert tree.prefix.ids == tuple(renderer.question_prefix(QUESTION, image).ids)
    for asked, branch in zip(PROMPTED, tree.branches, strict=True):
        read = PromptScheme.of(renderer).prompt_branch(renderer, asked.prompt, asked.documents, style)
        said = branch.ids[len(read) :]
        assert list(branch.ids[: len(read)]) == read
        assert list(branch.labels) == [IGNORE] * len(read) + list(said)
        assert said[-1] == renderer.end_token_id
        if asked.role:
            assert said[:-1] == (renderer.token_id(asked.role),)
        else:
            assert renderer.decode(said[:-1]) == asked.reply
            assert not set(renderer.token_ids.values()) & set(said)  # an answer can't forge a token


@pytest.mark.parametrize("kind", KINDS)
def test_plain_fine_tuning_supervises_answers_alone(kind, make, image):
    renderer = make.renderer(kind, PLAIN)
    asked = (PromptedBranch("vqa", reply="oak"), PromptedBranch("vqa", (make.passage(),), reply="dark oak"))
    tree = encode(renderer, PromptedExample("q", "", QUESTION, asked), image)
    assert renderer.token_ids == {}
    for given_, branch in zip(asked, tree.branches, strict=True):
        labels = supervised(branch)
        assert labels == renderer.reply_ids(given_.reply)
        whole = [*tree.prefix.ids, *branch.ids]
        assert whole == [*renderer.plain(QUESTION, image, given_.documents).ids, *labels]
    with pytest.raises(UserError, match="the scheme plain has no prompt `ret`"):
        PromptScheme.of(renderer).prompt_branch(renderer, "ret")


# Mistakes.


@pytest.mark.parametrize(
    ("scheme", "example", "message"),
    [
        (MMKB_RAG, PromptedExample("x", "", QUESTION, ()), "x: nothing is asked"),
        (MMKB_RAG, PromptedExample("x", "", QUESTION, (PromptedBranch("mct"),)), "x, prompt mct: the reply is missing"),
        (MR2AG, ReflectionExample("x", "", "Why?", True), "x: a question to look up needs at least one passage"),
        (MR2AG, ReflectionExample("x", "", "Why?", False), "x: a visual question needs an answer"),
    ],
)
def test_an_example_that_lacks_an_answer_or_a_passage_is_refused(make, image, scheme, example, message):
    with pytest.raises(UserError, match=message):
        encode(make.renderer("llava", scheme), example, image)


def test_a_question_without_words_or_an_image_is_refused(renderer, image):
    with pytest.raises(UserError, match="question is empty"):
        renderer.prefix("  ", image)
    with pytest.raises(UserError, match="has no image"):
        renderer.prefix(QUESTION, None)


def test_a_plain_model_has_no_reflection_tokens(make, image):
    plain = make.renderer("llava", None)
    assert plain.reflection_tokens == ()
    with pytest.raises(UserError, match="loaded without a scheme"):
        plain.token_id("relevant")
    with pytest.raises(UserError, match="reflects turn by turn, as mr2ag does, but the model's scheme is none"):
        PassageScheme.of(plain).passage_branch(plain, make.passage())


def test_a_role_that_a_scheme_lacks_is_named_with_those_that_it_has(make):
    with pytest.raises(
        UserError, match="scheme has no token for `certain`; it has retrieve, no_retrieve, relevant, ir"
    ):
        make.renderer("llava", MR2AG).token_id("certain")


def test_a_template_that_changes_earlier_turns_is_refused(make):
    processor = make.renderer("qwen2_vl").processor
    role = "message['role'] + "
    processor.chat_template = processor.chat_template.replace(f"{role}'\n'", f"{role}loop.length | string")
    with pytest.raises(UserError, match="changes earlier turns"):
        Renderer(MR2AG, processor)


def test_a_template_with_a_line_break_before_replies_is_named(make):
    """As that of llava-hf/llama3-llava-next-8b-hf is."""
    processor = make.renderer("qwen2_vl").processor
    processor.chat_template = processor.chat_template.replace("part['text']", "'\n' + part['text']")
    with pytest.raises(UserError, match=r"the chat template writes '\\n' before each reply"):
        Renderer(MR2AG, processor)


@pytest.mark.parametrize("content", ["message['content'] + '\n'", "message['content'].strip()"])
def test_a_template_that_takes_texts_alone_is_refused_with_how_to_write_one(make, content):
    """As SmolLM2's and Llama 2's are: both fail within Jinja."""
    processor = make.renderer("llava").processor
    processor.chat_template = "{% for message in messages %}{{ message['role'] + ': ' + " + content + " }}{% endfor %}"
    with pytest.raises(UserError, match=r"can't take an image and a text .*write one that takes") as error:
        Renderer(MR2AG, processor)
    assert "{% for part in message['content'] %}" in str(error.value)


def test_the_fingerprint_follows_template_and_scheme(make):
    renderer = make.renderer("llava")
    first = renderer.fingerprint
    renderer.processor.chat_template += " "
    assert Renderer(MR2AG, renderer.processor).fingerprint != first
