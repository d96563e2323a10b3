from reflectune.inference.pipelines.documents import DocumentFinder, DocumentFinderSettings


def test_documents_are_the_best_passages_by_words_of_the_best_entries(make, scripted, knowledge) -> None:
    finder = DocumentFinder(
        scripted.retriever({"b": 0.8, "a": 0.4, "c": 0.3}), knowledge, DocumentFinderSettings(top_n=2, documents=3)
    )
    question = make.question(0, text="What does the owl eat?")
    (retrieved,) = finder.find([question], scripted.images(1))
    assert [hit.entry_id for hit in retrieved.hits] == ["b", "a"]
    assert [document.id for document in retrieved.documents] == ["b#1.0", "a#1.0", "b#0.0"]


def test_scores_stand_beside_the_documents(make, scripted, knowledge) -> None:
    finder = DocumentFinder(scripted.retriever({"b": 0.8, "a": 0.4}), knowledge, DocumentFinderSettings(documents=3))
    (retrieved,) = finder.find([make.question(0, text="What does the owl eat?")], scripted.images(1))
    traces = retrieved.traces([0.75, None, 0.25])
    assert [(p.s_ret, p.s_rel, p.s_irr) for p in traces] == [(0.8, 0.75, 0.25), (0.4, None, None), (0.8, 0.25, 0.75)]
    assert [p.relevant for p in traces] == [True, False, False]


def test_no_question_is_no_search(scripted, knowledge) -> None:
    retriever = scripted.retriever({"a": 0.5})
    assert DocumentFinder(retriever, knowledge, DocumentFinderSettings()).find([], []) == []
    assert retriever.searched == 0
