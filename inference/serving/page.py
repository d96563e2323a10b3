"""The page: ask about an image, see each decision, and move its thresholds without running the model again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import gradio as gr
from fastapi import FastAPI
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like

from reflectune.core.errors import UserError
from reflectune.core.html import read_asset
from reflectune.core.images import encode_image, load_image
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset, splits
from reflectune.inference.pipelines.decisions import Controls
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings
from reflectune.inference.pipelines.mr2ag import ChoiceSettings
from reflectune.inference.pipelines.registry import reflecting
from reflectune.inference.report.data import data_uri
from reflectune.inference.serving.images import MAX_IMAGE_MB
from reflectune.inference.serving.problems import RequestProblem
from reflectune.inference.serving.questions import SIDE, PageQuestions
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.serving.views import part, partial_view, title_of, view
from reflectune.retrieval.config import RetrieverConfig

_MOVE: Final = "async_move_resource_to_block_cache"
_FONTS: Final = ["system-ui", "sans-serif"]
_GONE: Final = "The question of this link has expired; ask it again."
_WORDS: Final = (
    "thresholds of the gate and of S_rel, weight of titles, entries to read",
    "thresholds of the gate and of S_rel, documents to keep (0: all above the threshold)",
)
_STATUS_JS: Final = "element.setAttribute('role', 'status'); element.setAttribute('aria-live', 'polite');"
_SHOW_JS: Final = """() => {
    const link = document.getElementById("rt-link");
    if (link) history.replaceState(null, "", link.getAttribute("href"));
    document.querySelector("#rt-status .rt-note, #rt-answer")?.scrollIntoView({ block: "nearest" });
}"""


def mount_page(app: FastAPI, service: AnswerService) -> FastAPI:
    """Mount the page at the root of a server, if one of its pipelines reflects.

    Args:
        app: The server.
        service: Answers the questions.
    """
    if not (names := [name for name in service.pipelines if name in reflecting()]):
        print(f"no page: it needs {' or '.join(reflecting())} among the pipelines")
        return app
    theme = gr.themes.Base(primary_hue="indigo", neutral_hue="slate", font=_FONTS, font_mono=["monospace"])
    return gr.mount_gradio_app(
        app,
        build_page(PageQuestions(service, names[0])),
        "/",
        theme=theme,
        css=read_asset("inference/serving/page.css").text,
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=f"{MAX_IMAGE_MB}mb",
        ssr_mode=False,
        mcp_server=False,
    )


def image_input() -> gr.Image:
    """Return the image input. Its value is the bytes of the file, so that only `open_image` decodes them."""
    image = gr.Image(label="Image", sources=["upload", "clipboard", "webcam"], height=250)

    def content(payload: Any) -> Any:
        return Path(payload.path).read_bytes() if payload and payload.path else b""

    setattr(image, "preprocess", content)  # noqa: B010  # gradio writes a stub next to the module of a subclass
    return image


def allow_uploads_alone(page: gr.Blocks) -> None:
    """Make every component refuse files that the visitor did not upload: paths of this machine, and addresses."""
    page.has_launched = True  # else gradio skips its check of paths, since this page is mounted and not launched
    for block in page.blocks.values():
        setattr(block, _MOVE, partial(_move, getattr(block, _MOVE)))


async def _move(move: Callable[[Any], Awaitable[Any]], path: Any) -> Any:
    if is_http_url_like(str(path)):
        raise gr.Error("addresses are not opened; upload the image", print_exception=False)
    return await move(path)


def build_page(questions: PageQuestions) -> gr.Blocks:
    """Return the page of a service's questions."""
    script = read_asset("inference/serving/page.js").text
    bare: dict[str, Any] = {"apply_default_css": False}
    with gr.Blocks(title="reflectune", analytics_enabled=False, delete_cache=(3600, 3600), fill_width=True) as page:
        asked, without, sliders = gr.State(""), gr.State(()), _sliders(questions)
        events = PageEvents(questions, [*sliders])
        gr.HTML(part("title", name=title_of(questions.scheme)), **bare)
        with gr.Row():
            with gr.Column(scale=2, min_width=280):
                image = image_input()
                question = gr.Textbox(label="Question", placeholder="Ask about the image", lines=1)
                ask = gr.Button("Ask", variant="primary")
                buttons = gr.HTML(part("examples", examples=events.shown_examples()), js_on_load=script, **bare)
            with gr.Column(scale=5, min_width=320):
                status = gr.HTML(elem_id="rt-status", js_on_load=_STATUS_JS, **bare)
                answer = gr.HTML(part("intro"), **bare)
                with gr.Column(visible=False, elem_id="rt-panel") as panel:
                    gr.HTML(part("sliders", words=_WORDS[isinstance(questions.settings, MmkbRagSettings)]), **bare)
                    with gr.Row():
                        for slider in sliders.values():
                            slider.render()
                evidence = gr.HTML(js_on_load=script, **bare)
        shown, values = [answer, evidence, status, panel, asked, without], [*sliders.values()]
        asking: dict[str, Any] = {
            "fn": events.ask,
            "inputs": [image, question, *values],
            "outputs": shown,
            "concurrency_limit": questions.service.config.batch_questions,
        }
        picked = buttons.example(events.pick, None, [image, question])
        for trigger in (ask.click, question.submit, picked.then):
            trigger(**asking, show_progress="minimal").then(None, js=_SHOW_JS)
        again: dict[str, Any] = {"inputs": [asked, without, *values], "outputs": shown, "queue": False}
        for slider in values:
            slider.input(events.decide, **again, show_progress="hidden", trigger_mode="always_last")
        evidence.tick(events.tick, **again, show_progress="hidden")
        page.load(events.follow, values, shown, show_progress="hidden").then(None, js=_SHOW_JS)
    allow_uploads_alone(page)
    return page.queue(max_size=questions.service.config.max_requests)


class PageEvents:
    """Handlers of the page. Each returns answer, evidence, status, panel, the question's id, and unticked passages.

    Args:
        questions: The questions.
        sliders: Fields of `Controls` that the sliders set, in order.
    """

    def __init__(self, questions: PageQuestions, sliders: Sequence[str]) -> None:
        self._questions, self._sliders = questions, sliders
        self._examples = find_examples(questions.service.dataset)

    def ask(self, content: bytes, text: str, *values: float) -> Iterator[list[Any]]:
        """Ask the model; show the gate and the entries as they come."""
        controls = self._controls(values)
        try:
            for found in self._questions.ask(text, content, controls):
                if found.id:
                    yield self.decide(found.id, (), *values)
                else:
                    parts = partial_view(found, controls)
                    yield [parts.answer, parts.evidence, part("status", text=parts.status), gr.skip(), "", ()]
        except (UserError, RequestProblem) as error:
            yield ["", "", part("status", text=str(error), problem=True), gr.Column(visible=False), "", ()]

    def decide(self, asked: str, without: Sequence[int], *values: float) -> list[Any]:
        """Recompute the decision of a question by the sliders, without running the model."""
        if (found := self._questions.find(asked)) is None:
            return ["", "", part("status", text=_GONE, problem=True), gr.Column(visible=False), "", ()]
        parts = view(found, self._controls(values, without), self._questions.settings)
        status = part("status", text=parts.status)
        return [parts.answer, parts.evidence, status, gr.Column(visible=True), asked, without]

    def tick(self, event: gr.EventData, asked: str, without: Sequence[int], *values: float) -> list[Any]:
        """Leave a passage out, or take it back."""
        return self.decide(asked, tuple({*without} ^ {int(event.position)}), *values)

    def follow(self, request: gr.Request, *values: float) -> list[Any]:
        """Open the question of a link."""
        asked = str(request.query_params.get("trace", ""))
        return self.decide(asked, (), *values) if asked else [gr.skip()] * 6

    def pick(self, event: gr.EventData) -> tuple[str, str]:
        """Return the path of the image and the text of an example, encoded here since gradio's WebP would be lossy."""
        example = self._examples[event.index % len(self._examples)]
        kind, content = encode_image(self._image(example))
        return save_bytes_to_cache(content, kind.replace("/", "."), get_upload_folder()), example.text

    def shown_examples(self) -> list[dict[str, str]]:
        """Return the examples for their template."""
        kinds = {True: "to retrieve for", False: "to answer from the image", None: ""}
        return [
            {"image": data_uri(self._image(it), SIDE), "kind": kinds[it.is_knowledge_based], "text": it.text}
            for it in self._examples
        ]

    def _image(self, question: Question) -> Any:
        return load_image(question.image, root=self._questions.service.dataset.image_roots)

    def _controls(self, values: Sequence[float], without: Sequence[int] = ()) -> Controls:
        numbers: dict[str, Any] = dict(zip(self._sliders, values, strict=True))
        counts = {name: int(value) or None for name, value in numbers.items() if name in ("entries", "documents")}
        return Controls(**(numbers | counts), without=frozenset(without))


def _sliders(questions: PageQuestions) -> dict[str, gr.Slider]:
    """Return an unrendered slider for each field of `Controls` that the pipeline's decision depends on."""
    settings: Any = questions.settings
    size: dict[str, Any] = {"min_width": 150, "render": False}
    share: dict[str, Any] = {"minimum": 0, "maximum": 1, "step": 0.01, **size}
    documents = isinstance(settings, MmkbRagSettings)
    threshold = settings.threshold if documents else 0.5
    sliders = {
        "gamma": gr.Slider(value=settings.gamma, label="Gate γ", **share),
        "threshold": gr.Slider(value=threshold, label="S_rel", **share),
    }
    if documents:
        most, value = settings.documents, settings.keep
        sliders["documents"] = gr.Slider(0, most, value, step=1, label="Documents", **size)
        return sliders
    weights = RetrieverConfig.of(questions.service.config)
    if isinstance(settings, ChoiceSettings) and weights.index:
        sliders["title_weight"] = gr.Slider(value=weights.title_weight, label="Titles", **share)
    sliders["entries"] = gr.Slider(1, questions.entries, settings.top_n, step=1, label="Entries", **size)
    return sliders


def find_examples(dataset: Dataset) -> list[Question]:
    """Return the first two questions of each kind, knowledge-based and visual, about readable images."""
    names = sorted(splits(dataset.root), key=lambda name: (not name.startswith("val"), name))
    found: dict[tuple[bool, str], Question] = {}
    for question in islice((question for name in names[:2] for question in dataset.stream(name)), 5000):
        kind = bool(question.is_knowledge_based)
        wanted = sum(known == kind for known, _ in found) < 2 and (kind, question.image) not in found
        if wanted and len(question.images) == 1 and _is_readable(question, dataset):
            found[kind, question.image] = question
    return [found[key] for key in sorted(found, reverse=True)]


def _is_readable(question: Question, dataset: Dataset) -> bool:
    try:
        load_image(question.image, root=dataset.image_roots)
    except (UserError, OSError):
        return False
    return True
