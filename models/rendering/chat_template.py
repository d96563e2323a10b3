"""Chat templates for models that see: LLaVA-1.5's, and a text-only one extended to lists of contents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jinja2

from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import Gap, ImageSlot, Slot, Turn
from reflectune.models.rendering.untrusted import slot_mark

LLAVA_15: Final = (
    "{{ bos_token }}A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. "
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'USER: ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ ' ' }}{% else %}{{ 'ASSISTANT:' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}"
    "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Template of LLaVA-1.5's tuning (`conv_vicuna_v1` of its code), with the end of a turn."""

LLAVA_SYSTEM: Final = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    "provides, and assist the user with a variety of tasks using natural language."
)
"""System turn of LLaVA's tunings of chat models (`conv_llava_llama_2`; `conv_llava_llama_3_1` of LLaVA-MORE)."""

QWEN_35: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
"""Template of Qwen3.5 with `enable_thinking` off, and an empty thought in earlier replies too.

The published template drops it from earlier replies, so that no prefix of a conversation could be shared.
"""

_LISTS: Final = (
    "{%- set texts = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- if message['content'] is string or message['content'] is not iterable -%}"
    "{%- set texts.messages = texts.messages + [message] -%}"
    "{%- else -%}"
    "{%- set joined = namespace(images='', text='') -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{%- set joined.images = joined.images + '<image>\n' -%}"
    "{%- elif part['type'] == 'text' -%}{%- set joined.text = joined.text + part['text'] -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- set texts.messages = texts.messages + [dict(message, content=joined.images + joined.text)] -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set messages = texts.messages -%}"
)
"""Makes texts of lists of contents: each image `<image>` and a new line, then the texts. It writes nothing."""

ADVICE: Final = (
    "write one that takes `message['content']` as a list, `{% for part in message['content'] %}{% if part['type'] == "
    "'image' %}{{ '<image>\\n' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}`"
)

Messages = Sequence[Mapping[str, Any]]

_QUESTION: Final = {"role": "user", "content": "Qé 1?"}
_PROBES: Final[Sequence[Messages]] = (
    (_QUESTION,),
    (_QUESTION, {"role": "assistant", "content": "A <b>2</b>.\n"}),
    (_QUESTION, {"role": "assistant", "content": "A."}, {"role": "user", "content": "  Next\n\nline"}),
    ({"role": "system", "content": "Be brief."}, _QUESTION),
)


def check_has_template(processor: Any) -> None:
    """Refuse a processor without a chat template, or with an empty one.

    Raises:
        UserError: It has none.
    """
    if not getattr(processor, "chat_template", None):
        raise UserError("the model's processor has no chat template; set one (chat_template.jinja in its folder)")


def turn_off_thinking(processor: Any) -> None:
    """Set Qwen3.5's template with thinking off, unless the processor has a template without such a switch."""
    if "enable_thinking" in (processor.chat_template or ""):
        processor.chat_template = QWEN_35


def before_reply(processor: Any) -> str:
    """Return a chat template's text between the assistant's cue and reply: a space (LLaVA's), or nothing (Qwen's).

    Raises:
        UserError: The template is missing, or can't take an image and a text.
    """
    check_has_template(processor)
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Q"}]}
    said = {"role": "assistant", "content": [{"type": "text", "text": "A"}]}
    try:
        cue = processor.apply_chat_template([asked], add_generation_prompt=True, tokenize=False)
        whole = processor.apply_chat_template([asked, said], tokenize=False)
    except (jinja2.TemplateError, TypeError) as error:
        raise UserError(f"the chat template can't be rendered ({error}); {ADVICE}") from error
    return str(whole)[len(cue) :].partition("A")[0] if whole.startswith(cue) else ""


def begin_with_system(template: str, system: str) -> str:
    """Let a chat template begin with a system turn, unless a conversation has one of its own.

    Args:
        template: Chat template of a tokenizer, for texts.
        system: Text of the turn, without quotation marks.
    """
    turn = "dict(role='system', content='" + system + "')"
    begun = "{%- set messages = [" + turn + "] + messages -%}"
    return "{%- if messages[0]['role'] != 'system' -%}" + begun + "{%- endif -%}" + template


def extend_to_lists(template: str, tokens: Mapping[str, str]) -> str:
    """Extend a chat template to lists of contents: images first, `<image>` and a new line each, then texts.

    A template that accepts them already is returned unchanged.

    Args:
        template: Chat template of a tokenizer.
        tokens: Variables that it may use: `bos_token`, `eos_token`, ….

    Raises:
        UserError: It is not a template, or the extended one would render a text differently.
    """
    if takes_lists(template, tokens):
        return template
    extended = _LISTS + template
    try:
        for messages in _PROBES:
            _check_texts(template, extended, messages, tokens)
    except jinja2.TemplateError as error:
        raise UserError(f"the chat template can't be rendered ({error}); {ADVICE}") from error
    if not takes_lists(extended, tokens):
        raise UserError(f"the chat template takes texts alone and can't be extended to lists of contents; {ADVICE}")
    return extended


def takes_lists(template: str, tokens: Mapping[str, str]) -> bool:
    """Return True if a template renders a list of an image and a text with both once, and the image first."""
    listed = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "QQ?"}]}]
    try:
        written = _render(template, listed, tokens, cue=True)
    except (jinja2.TemplateError, TypeError, KeyError):
        return False
    before, image, after = written.partition("<image>")
    return bool(image) and "<image>" not in after and "QQ?" not in before and after.count("QQ?") == 1


def _check_texts(template: str, extended: str, messages: Messages, tokens: Mapping[str, str]) -> None:
    """Require that texts are written as before, and lists as the same words after `<image>` and a new line."""
    with_images = [{**each, "content": f"<image>\n{each['content']}"} for each in messages]
    listed = [{**each, "content": [{"type": "image"}, {"type": "text", "text": each["content"]}]} for each in messages]
    for cue in (False, True):
        try:
            expected = [_render(template, each, tokens, cue=cue) for each in (messages, with_images)]
        except jinja2.TemplateError:
            if messages[0]["role"] == "system":
                return  # Gemma's raises on a system prompt
            raise
        if [_render(extended, each, tokens, cue=cue) for each in (messages, listed)] != expected:
            raise UserError(
                "the chat template takes texts alone, and made to take lists of contents it writes something else; "
                f"{ADVICE}"
            )


def _render(template: str, messages: Messages, tokens: Mapping[str, str], *, cue: bool) -> str:
    variables: Any = {"conversations": [list(messages)], "chat_template": template, **tokens}
    from transformers.utils.chat_template_utils import render_jinja_template  # slow to import

    rendered: Any = render_jinja_template(**variables, add_generation_prompt=cue)
    return str(rendered[0][0])  # the texts of all conversations, then where the assistant's are


def has_system_turn(processor: Any) -> bool:
    """Return True if a chat template has a system turn: some render it as the assistant's, or refuse it.

    Gemma's writes its words into the user's turn, before an image, and leaves them out without that turn.
    """
    written = {"system": "", "assistant": ""}
    asked = {"role": "user", "content": [{"type": "text", "text": "Who?"}]}
    for role in written:
        message = {"role": role, "content": [{"type": "text", "text": "Be brief."}]}
        with contextlib.suppress(jinja2.TemplateError, TypeError, ValueError):
            written[role] = processor.apply_chat_template([message, asked], tokenize=False)
    before, _, _ = written["system"].partition("Who?")
    return "Be brief." in before and written["system"] != written["assistant"]


def content(turn: Turn, gap: Callable[[], str], closing: str) -> list[dict[str, str]]:
    """Return a turn's content for a chat template: texts, with slots marked, and places of images.

    Args:
        turn: The turn.
        gap: Returns the text of a `Gap`.
        closing: Text after an assistant's turn.
    """
    made, text = [{"type": "image"}] if turn.image else [], ""
    for part in turn.parts:
        if isinstance(part, ImageSlot):
            made += [{"type": "text", "text": text}, {"type": "image"}]
            text = ""
        elif isinstance(part, Gap):
            text += gap()
        else:
            text += slot_mark(part) if isinstance(part, Slot) else part
    return [*made, {"type": "text", "text": text + (closing if turn.role == "assistant" else "")}]
