"""One service over a tiny world and random models, for all tests of the server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.config import make_config
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.service import AnswerService

PIPELINES = ["mr2ag", "closed_book", "naive_rag"]


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Serve a model of one family: the server is the same for all."""
    if "family" in metafunc.fixturenames:
        metafunc.definition.add_marker(pytest.mark.parametrize("family", ["llava"], indirect=True))


@pytest.fixture(scope="module")
def service(
    world: Path, checkpoints: SimpleNamespace, make, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AnswerService]:
    """A service whose gate is always open."""
    texts = tmp_path_factory.mktemp("texts") / "index"
    make.text_index(KnowledgeBase(world / "knowledge"), texts)
    more = {"gamma": 0.0, "top_n": 2, "text_index": str(texts), "pipelines": PIPELINES}
    with AnswerService(make_config(ServeConfig, **make.keys(world, checkpoints, **more))) as opened:
        yield opened
    assert not opened.is_healthy(), "its worker has ended"


@pytest.fixture(scope="module")
def photo(world: Path) -> Image.Image:
    return Image.open(world / "images/e1.png").convert("RGB")


@pytest.fixture(scope="module")
def busy(service: AnswerService, photo: Image.Image) -> Callable[[], AbstractContextManager[None]]:
    """Return a context inside which the service's worker answers nothing."""

    @contextmanager
    def block() -> Iterator[None]:
        begun, may_go_on = threading.Event(), threading.Event()
        future = service.submit("Is it busy?", photo, "mr2ag", lambda event: (begun.set(), may_go_on.wait(60)))
        assert begun.wait(60)
        yield
        may_go_on.set()
        future.result(60)

    return block
