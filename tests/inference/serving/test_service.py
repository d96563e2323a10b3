"""Questions of many threads are answered together, as a pipeline answers them alone; searches find what is there."""

import threading
from concurrent.futures import CancelledError

import pytest

from reflectune.core.errors import UserError
from reflectune.inference.pipelines.mr2ag import MR2AG
from reflectune.inference.serving.events import Event
from reflectune.inference.trace import to_row

ASKED = "What does it eat?"


def test_answers_and_searches_do_not_depend_on_who_else_asks(service, photo, busy) -> None:
    """Requests that wait while the worker is busy are one batch, and an image alone is answered as in a batch."""
    alone = {name: service.submit(ASKED, photo, name).result() for name in service.pipelines}
    batches: list[tuple[str, int]] = []
    service.on_batch = lambda pipeline, count: batches.append((pipeline, count))
    with busy():
        futures = {(name, n): service.submit(ASKED, photo, name) for n in range(3) for name in ("mr2ag", "closed_book")}
        cancelled, search = service.submit(ASKED, photo), service.search_images([photo], 3)
        assert cancelled.cancel()
    for (name, _), future in futures.items():
        assert future.result(60).answer == alone[name].answer
        assert future.result(60).gate == pytest.approx(alone[name].gate, abs=1e-5)
    assert len(search.result(60)[0]) == 3
    assert batches == [("mr2ag", 1), ("mr2ag", 3), ("closed_book", 3)]
    with pytest.raises(CancelledError):
        cancelled.result()


@pytest.mark.parametrize(
    ("pipeline", "names"),
    [
        ("", ["gate", "hits", "passage", "passage", "passage", "passage"]),
        ("naive_rag", ["hits", "passage", "passage"]),
        ("closed_book", []),
    ],
)
def test_events_come_in_order_and_hold_what_the_trace_holds(service, photo, pipeline: str, names: list[str]) -> None:
    before: list[Event] = []
    row = to_row(service.submit(ASKED, photo, pipeline, before.append).result(60))
    assert [event.name for event in before] == [*names, *["answer"] * bool(row["answer"])]
    for event in before:
        shown = {"gate": row["gate"], "hits": list(row["hits"]), "answer": row["answer"]}
        if event.name == "passage":
            read = row["passages"][event.data["position"]]
            assert (event.data["id"], event.data["s_rel"]) == (read["id"], read["s_rel"])
        else:
            assert event.data[event.name] == shown[event.name]


def test_the_first_events_come_before_the_answer(service, photo) -> None:
    """The gate is passed on while the question is still being answered."""
    running: list[bool] = []
    seen, begun = threading.Event(), []
    future = service.submit(ASKED, photo, "", lambda event: (seen.wait(60), running.append(begun[0].done())))
    begun.append(future)
    seen.set()
    assert future.result(60)
    assert running
    assert not any(running)


def test_a_question_that_is_tried_again_repeats_no_event(service, photo, busy, monkeypatch) -> None:
    """A batch that fails after its first events is answered question by question."""
    run, before, failed = MR2AG.run, [], []

    def runs_out(self, questions, images):
        if len(questions) > 1 and not failed:
            failed.append(run(self, questions, images))
            raise RuntimeError("out of memory")
        return run(self, questions, images)

    monkeypatch.setattr(MR2AG, "run", runs_out)
    with busy():
        asked = [service.submit(ASKED, photo, "mr2ag", before.append), service.submit(ASKED, photo, "mr2ag")]
        assert service.waiting() == 2
    assert all(future.result(60).retrieved for future in asked)
    assert failed
    assert [event.name for event in before].count("gate") == 1
    assert [event.name for event in before].count("hits") == 1


def test_questions_of_other_batches_wait_too(service, photo, busy) -> None:
    waiting: list[int] = []
    service.on_batch = lambda *_: waiting.append(service.waiting())
    with busy():
        futures = [service.submit(ASKED, photo, name) for name in ("mr2ag", "closed_book", "naive_rag")]
    for future in futures:
        future.result(60)
    assert waiting[-3:] == [2, 1, 0]


def test_searches_leave_entries_out(service, photo) -> None:
    (hits,) = service.search_images([photo], 3).result(60)
    (fewer,) = service.search_images([photo], 2, [hits[0].entry_id, "unknown"]).result(60)
    assert [(hit.entry_id, hit.rank) for hit in fewer] == [(hits[1].entry_id, 1), (hits[2].entry_id, 2)]
    ((best, *_),) = service.search_texts(["It lives in an oak."], 2).result(60)
    assert best.passage.text == "It lives in an oak."


@pytest.mark.parametrize(
    ("question", "pipeline", "problem"),
    [
        (" \n", "", "the question is empty"),
        (ASKED, "oracle", "unknown pipeline `oracle`; one of mr2ag, closed_book, naive_rag_article"),
        ("What? " * 3000, "", "tokens long, but the model takes"),
    ],
    ids=["empty", "pipeline", "long"],
)
def test_bad_questions_are_refused_alone(service, photo, question, pipeline, problem: str) -> None:
    good = service.submit(ASKED, photo)
    with pytest.raises(UserError, match=problem):
        service.submit(question, photo, pipeline).result()
    assert good.result(60).retrieved
