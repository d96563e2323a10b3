"""The server's routes: chat completions, answers with events, searches, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from reflectune.core.errors import UserError
from reflectune.core.images import open_image
from reflectune.inference.serving.admission import Admission, Load
from reflectune.inference.serving.bodies import AnswerBody, ChatBody, SearchBody, check_text, parse
from reflectune.inference.serving.config import ServerSettings
from reflectune.inference.serving.events import Event
from reflectune.inference.serving.images import MAX_MEGAPIXELS, count_pixels, from_data_url
from reflectune.inference.serving.metrics import ServerMetrics
from reflectune.inference.serving.problems import RequestProblem
from reflectune.inference.serving.replies import chunk_stream, completion, event_stream, found_entries, found_passages
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.trace import Trace

_LOG: Final = logging.getLogger("uvicorn.error")
_TOP: Final = 3
"""Documents per query, Search-R1's default."""
_PART: Final = 8 << 20
"""Maximum bytes of a form's text, large enough that the error of a long question can give its length."""
LARGE: Final = 4_000_000
"""Minimum pixels of a request's images to count as large."""
Result = TypeVar("Result")


def create_app(service: AnswerService, settings: ServerSettings) -> FastAPI:
    """Return the server of a service.

    `app.state.load` holds the requests under way.

    Args:
        service: Answers the questions. Its `on_batch` is set.
        settings: Access and load.
    """
    metrics, load = ServerMetrics(service.waiting), Load()
    service.on_batch = metrics.count_batch
    app = FastAPI(title="reflectune", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.load = load
    app.add_middleware(Admission, settings=settings, load=load, metrics=metrics)
    for kind in (RequestProblem, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, _refuse)
    _add_answers(app, service, load)
    _add_chat(app, service, load, last_message=settings.last_message)
    _add_search(app, service, load)

    @app.api_route("/healthz", methods=["GET", "HEAD"])  # some load balancers send HEAD
    async def health() -> dict[str, str]:
        if not service.is_healthy():
            raise RequestProblem(503, "the last questions failed; the server's log has the reason; start it again")
        return {"status": "ok"}

    @app.api_route("/v1/{path:path}", methods=["GET", "POST"])  # else the page's, which is mounted at the root
    async def unknown(path: str, request: Request) -> None:
        served = "POST /v1/chat/completions and GET /v1/models are served"
        raise RequestProblem(404, f"unknown route {request.method} /v1/{path}; {served}")

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return app


def _add_answers(app: FastAPI, service: AnswerService, load: Load) -> None:
    @app.post("/answer")
    async def answer(request: Request) -> StreamingResponse:
        body, image = await _question_of(request)
        _, events = await _ask(service, load, body, image)
        return _stream(event_stream(events))


def _add_chat(app: FastAPI, service: AnswerService, load: Load, *, last_message: bool) -> None:
    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "reflectune"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [*map(described, service.pipelines)]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return described(await _in_thread(service.pipeline_named, name))

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await run_in_threadpool(parse, ChatBody, await request.body())
        question, identity = body.question(last_message=last_message), uuid.uuid4().hex
        future, events = await _ask(service, load, question, from_data_url(question.image))
        if not body.stream:
            return JSONResponse(completion(_complete(await _result(request, future)), identity))
        return _stream(chunk_stream(events, identity, service.pipeline_named(question.pipeline)))


def _add_search(app: FastAPI, service: AnswerService, load: Load) -> None:
    @app.post("/retrieve")
    async def retrieve(request: Request) -> dict[str, Any]:
        body = await run_in_threadpool(parse, SearchBody, await request.body())
        body.check()
        top, scores = body.topk or _TOP, body.return_scores
        if body.queries:
            passages = await _enqueued(service.search_texts, body.queries, top)
            return found_passages(await _result(request, passages), scores=scores)
        files = [from_data_url(url) for url in body.images]
        entries = await _decoded(files, load, lambda images: service.search_images(images, top, body.exclude))
        results = await _result(request, entries)
        return await run_in_threadpool(found_entries, results, service.dataset.knowledge, scores=scores)


async def _question_of(request: Request) -> tuple[AnswerBody, bytes]:
    """Return a question and the bytes of its image, from a form or from JSON with a data URL."""
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        content = await request.body()
        if kind.startswith("application/x-www-form-urlencoded") and not content.lstrip().startswith(b"{"):  # curl -d
            raise RequestProblem(400, "send the form as multipart/form-data, with a file `image`, or send JSON")
        body = await run_in_threadpool(parse, AnswerBody, content)
        return body, from_data_url(body.image)
    async with request.form(max_files=1, max_fields=3, max_part_size=_PART) as form:
        image, question, pipeline = form.get("image"), form.get("question"), form.get("pipeline", "")
        if not isinstance(image, UploadFile) or not isinstance(question, str) or not isinstance(pipeline, str):
            raise RequestProblem(400, "the form needs a file `image` and a text `question`, and may have a `pipeline`")
        return AnswerBody(image="", question=question, pipeline=pipeline), await image.read()


async def _ask(
    service: AnswerService, load: Load, body: AnswerBody, image: bytes
) -> tuple[Future[Trace], AsyncIterator[Event]]:
    """Enqueue a question; return the future of its trace, and its events."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

    def pass_on(event: Event | None) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    await _in_thread(service.pipeline_named, body.pipeline)
    check_text("the question", body.question)
    future = await _decoded(
        [image], load, lambda images: service.submit(body.question, images[0], body.pipeline, pass_on)
    )
    future.add_done_callback(lambda _: pass_on(None))
    return future, _until_done(future, events)


async def _decoded(
    images: Sequence[bytes], load: Load, enqueue: Callable[[list[Image.Image]], Future[Result]]
) -> Future[Result]:
    """Decode images and enqueue their request. Large images wait for a slot, which they hold until the result."""
    loop = asyncio.get_running_loop()
    pixels = await _in_thread(lambda: sum(map(count_pixels, images)))
    if pixels > MAX_MEGAPIXELS * 10**6:
        raise RequestProblem(413, f"the images have more than {MAX_MEGAPIXELS} million pixels")
    slot = load.large if pixels > LARGE else asyncio.Semaphore()
    await slot.acquire()
    try:
        future = await _enqueued(lambda: enqueue([*map(open_image, images)]))
    except BaseException:
        slot.release()
        raise
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(slot.release))
    return future


async def _until_done(future: Future[Trace], events: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
    """Yield a question's events; the last one is `done` or `error`. The question is cancelled on a disconnect."""
    try:
        while (event := await events.get()) is not None:
            yield event
        yield Event.done(_complete(future.result()))
    except Exception as error:
        yield Event("error", RequestProblem.of(error, status=502).body())
    finally:
        future.cancel()


async def _result(request: Request, future: Future[Result]) -> Result:
    """Wait for a result. It is cancelled if the client disconnects."""
    disconnect, result = asyncio.ensure_future(_disconnect(request)), asyncio.wrap_future(future)
    either: set[asyncio.Future[Any]] = {disconnect, result}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise RequestProblem(499, "the client disconnected")
        return result.result()
    except Exception as error:
        raise RequestProblem.of(error, status=502) from error
    finally:
        disconnect.cancel()
        result.cancel()


async def _disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on a thread. A UserError becomes a problem with status 404, since it names what isn't served."""
    try:
        return await run_in_threadpool(function, *arguments)
    except UserError as error:
        raise RequestProblem.of(error, status=404) from error


async def _enqueued(enqueue: Callable[..., Future[Result]], *arguments: Any) -> Future[Result]:
    """Enqueue a request; its failure is logged, whether or not its client waits."""
    future = await _in_thread(enqueue, *arguments)
    future.add_done_callback(_log_failure)
    return future


def _log_failure(future: Future[Any]) -> None:
    if future.cancelled() or (error := future.exception()) is None:
        return
    if isinstance(error, UserError):
        _LOG.warning("a request failed: %s", RequestProblem.of(error, status=502).message)
    else:
        _LOG.error("a request failed", exc_info=error)


def _complete(trace: Trace) -> Trace:
    """Return a trace, or raise its error, such as a refusal of the model's server."""
    if trace.error:
        raise RequestProblem(502, trace.error)
    return trace


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return RequestProblem(error.status_code, str(error.detail), error.headers or {}).response()
    problem = RequestProblem(499, "the client disconnected") if isinstance(error, ClientDisconnect) else error
    return RequestProblem.of(problem, status=500).response()


def _stream(lines: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines, media_type="text/event-stream", headers=headers)
