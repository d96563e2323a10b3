"""Text-only chat templates as they are published, extended to lists of contents."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from reflectune.core.errors import UserError
from reflectune.models.rendering.chat_template import (
    LLAVA_15,
    QWEN_35,
    extend_to_lists,
    has_system_turn,
    takes_lists,
    turn_off_thinking,
)
from reflectune.models.schemes.passages import PassageScheme

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else "
    "message['role'] %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
    "message['content'].strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEXTS: list[dict[str, Any]] = [
    {"role": "user", "content": " Who  painted\nit? <b>ö</b>"},
    {"role": "assistant", "content": "Van Gogh."},
    {"role": "user", "content": "When?"},
]


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def render(template: str, messages: list[dict[str, Any]], *, cue: bool = True) -> str:
    return render_jinja_template([messages], chat_template=template, add_generation_prompt=cue, **TOKENS)[0][0]


@pytest.mark.parametrize("template", [SMOLLM2, GEMMA, LLAMA_2], ids=["smollm2", "gemma", "llama2"])
@pytest.mark.parametrize("cue", [True, False])
def test_texts_are_written_as_before_to_the_byte(template: str, cue: bool) -> None:
    extended = extend_to_lists(template, TOKENS)
    assert render(extended, TEXTS, cue=cue) == render(template, TEXTS, cue=cue)


def test_lists_of_contents_are_written_as_the_rule_says() -> None:
    """Images first, `<image>` and a new line each, then the texts."""
    messages = [
        {"role": "user", "content": [words("Who is"), {"type": "image"}, words(" it?")]},
        {"role": "assistant", "content": [words("Ada.")]},
        {"role": "user", "content": "When?"},
    ]
    assert render(extend_to_lists(SMOLLM2, TOKENS), messages) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n<image>\nWho is it?<|im_end|>\n<|im_start|>assistant\nAda.<|im_end|>\n"
        "<|im_start|>user\nWhen?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_takes_lists_stays_as_it_is() -> None:
    assert takes_lists(LLAVA_15, TOKENS)
    assert extend_to_lists(LLAVA_15, TOKENS) == LLAVA_15
    assert not takes_lists(SMOLLM2, TOKENS)
    assert takes_lists(extend_to_lists(SMOLLM2, TOKENS), TOKENS)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for", "can't be rendered"),
        ("{{ raise_exception('no') }}", "can't be rendered"),
        ("{{ messages[0]['content'] | length }}", "can't be extended"),
        ("{% for m in messages %}{{ m['content'].split('<')[0] }}{% endfor %}", "can't be extended"),
        ("{% for m in messages %}{{ m['text'] }}{% endfor %}", "can't be extended"),
        # asks which kind of content it is, and writes another text for a message that was joined
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "can't be extended"),
    ],
)
def test_another_template_is_refused_with_how_to_write_one(template: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        extend_to_lists(template, TOKENS)
    assert "{% for part in message['content'] %}" in str(error.value)
    assert "Traceback" not in str(error.value)


GEMMA_3 = (
    "{% set lead = '' %}{% set rest = messages %}{% if messages[0]['role'] == 'system' %}"
    "{% set lead = messages[0]['content'][0]['text'] + '\n\n' %}{% set rest = messages[1:] %}{% endif %}"
    "{% for message in rest %}{{ '<start_of_turn>' + message['role'] + '\n' }}{% if loop.first %}{{ lead }}{% endif %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
)
"""Shape of Gemma-3's template: a system's words begin the first user's turn."""


@pytest.mark.parametrize(
    ("template", "has"),
    [(GEMMA_3, True), (extend_to_lists(SMOLLM2, TOKENS), True), (GEMMA, False), (LLAVA_15, False)],
    ids=["gemma3", "smollm2", "gemma", "llava15"],
)
def test_a_system_turn_is_one_before_the_users_text(template: str, has: bool) -> None:
    def rendered(messages: list[dict[str, Any]], *, tokenize: bool) -> str:
        assert not tokenize
        return render(template, messages)

    assert has_system_turn(SimpleNamespace(apply_chat_template=rendered)) is has


THINKING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' and loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}"
    "{%- else %}{{- '<think>\n' }}{%- endif %}{%- endif %}"
)
"""Shape of Qwen3.5's template: earlier replies lose their thoughts."""


def test_thinking_is_off_as_qwen35s_switch_has_it_and_earlier_replies_keep_their_beginning():
    processor = SimpleNamespace(chat_template=THINKING)
    turn_off_thinking(processor)
    assert processor.chat_template == QWEN_35
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]}
    said = {"role": "assistant", "content": [{"type": "text", "text": "Ada."}]}
    for messages, cue in (([asked], True), ([asked, said], False)):
        published = render_jinja_template(
            [messages], chat_template=THINKING, add_generation_prompt=cue, enable_thinking=False
        )[0][0]
        assert render(QWEN_35, messages, cue=cue) == published
    whole = render(QWEN_35, [asked, said, asked], cue=True)
    assert whole.startswith(render(QWEN_35, [asked, said], cue=False))
    other = SimpleNamespace(chat_template=LLAVA_15)
    turn_off_thinking(other)
    assert other.chat_template == LLAVA_15


def test_each_reply_of_qwen35_begins_with_an_empty_thought(make):
    renderer = make.renderer("qwen3_5")
    tree = PassageScheme.of(renderer).encode(renderer, make.example(), make.image())
    empty = "assistant\n<think>\n\n</think>\n\n"
    assert f"{empty}[Retrieval]<|im_end|>" in renderer.decode(tree.prefix.ids)
    read = renderer.decode(tree.branches[0].ids)
    assert f"{empty}[Relevant]1800<|im_end|>" in read
