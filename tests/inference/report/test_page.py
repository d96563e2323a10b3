import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.report.data import script_json
from reflectune.inference.report.page import fill, sample

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp;\u2028"


class Elements(HTMLParser):
    """The tags of a page, and the text of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open in self.raw:
            self.raw[self._open].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def page(**more: object) -> str:
    parts = ("overview", "losses", "scores", "parts", "rankings", "costs", "charts", "calibration", "facts")
    empty = dict.fromkeys(parts, "")
    values = {
        **empty,
        "title": "t",
        "subtitle": "s",
        "finding": "f",
        "lost": "l",
        "notices": [],
        "browse_note": "b",
        "data": {},
    }
    return fill(**{**values, **more})


@given(json_values)
def test_embedded_json_comes_back_and_cannot_leave_its_element(value: object) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_untrusted_text_adds_no_element() -> None:
    plain = Elements(page(notices=["x"], data={"text": "x"}))
    evil = Elements(
        page(title=EVIL, subtitle=EVIL, finding=EVIL, lost=EVIL, notices=[EVIL], browse_note=EVIL, data={"text": EVIL})
    )
    assert evil.tags == plain.tags
    assert json.loads(evil.raw["script"][0]) == {"text": EVIL}


def test_the_policy_allows_exactly_our_script_and_style() -> None:
    elements = Elements(page())
    policy = next(tag["content"] for name, tag in elements.tags if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind, text in (("script", elements.raw["script"][1]), ("style", "".join(elements.raw["style"]))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_the_page_needs_no_network_and_has_no_inline_handlers() -> None:
    text = page()
    assert not re.search(r"https?://", text)
    assert not any(name in ("link", "iframe") or "src" in tag for name, tag in Elements(text).tags)
    assert not any(key.startswith("on") or key == "style" for _, tag in Elements(text).tags for key in tag)


def test_scripts_write_text_only() -> None:
    script = Elements(page()).raw["script"][1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


def test_a_sample_is_repeatable_and_drawn(make) -> None:
    questions = [make.question(i) for i in range(50)]
    chosen = sample(questions, 10, seed=3)
    assert chosen == sample(questions, 10, seed=3)
    assert len(chosen) == 10
    assert chosen != questions[:10]
    assert sorted(sample(questions, 99, seed=3), key=lambda question: question.id) == questions
