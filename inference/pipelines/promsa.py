"""ProMSA (arXiv 2606.27974, ECCV 2026): an agent that searches by image, searches by text, or answers, turn by turn.

Each reply is a thought and one action: `image_search`, `text_search` with a query, or an answer, which ends the
trajectory. A search returns passages of entries that it has not returned before. Tools' results are the user's next
turns. Published: the tags, the tools and their arguments, the budgets, and that results are new ones. Ours: the words
of the prompts; results are passages, which a summariser shortens only if `page_summaries` asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.searching import PAIRS, SearchSettings
from reflectune.inference.operators.tool_calls import Action, calls_tool, read_action
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, write
from reflectune.inference.pipelines.iterative import TrajectorySettings, iterative_recipe
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.requirements import LISTED_ENTRIES, OPTIONAL_TEXTS
from reflectune.models.rendering.thoughts import without_thoughts
from reflectune.models.rendering.turns import answer_prompt, passage_text

IMAGE_SEARCH, TEXT_SEARCH = "image_search", "text_search"
TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    IMAGE_SEARCH: {
        "description": "Find encyclopedia entries with pictures like the question's. For an entity that is not known "
        "or not certain. A further call returns further entries.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
    TEXT_SEARCH: {
        "description": "Search the encyclopedia with a text. For a known entity whose facts are missing.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "the text to search with"}},
            "required": ["query"],
        },
    },
}
"""Tools by name, in the form of OpenAI's function calls."""

SYSTEM: Final = (
    "You answer questions about a picture step by step, with the help of tools.\n\nTools:\n"
    + "\n".join(
        json.dumps({"type": "function", "function": {"name": name, **tool}}, separators=(", ", ": "))
        for name, tool in TOOLS.items()
    )
    + "\n\nEvery reply begins with your thoughts, and has one action after them: a tool call, or the answer, as soon "
    "as the evidence is enough.\n<thinking> what is known and what is missing </thinking>\n"
    '<tool_call>{"name": "the tool", "arguments": {"query": "for text_search alone"}}</tool_call>\nor\n'
    "<thinking> the evidence and what follows from it </thinking>\n<answer> the answer, in a few words </answer>"
)
SUMMARIZE: Final = """\
Question: {question}
Page: {page}

Summarize the page in at most four sentences. Begin with what helps to answer the question."""
LAST: Final = "There are no further calls. Answer now inside <answer> </answer>."

_NAMES: Final = {f"{name}_tool": name for name in TOOLS}
"""Names of the tools in the released code."""


class PromsaSettings(SearchSettings, TrajectorySettings):
    """Settings of ProMSA. `max_record_tokens` limits a reply, and a summary."""

    image_calls: int = setting(3, "promsa: maximum calls of image_search; 3 in the paper", ge=0)
    text_calls: int = setting(3, "promsa: maximum calls of text_search; 3 in the paper, 4 in the released code", ge=0)
    call_passages: int = setting(3, "promsa: passages that a call returns; 3, as published", ge=1)
    turns: int = setting(8, "promsa: maximum replies per question; 8 in the released code", ge=1)
    describe_tools: bool = setting(
        True, "promsa: describe tools and the form of replies in a system prompt; false for an agent trained without it"
    )
    page_summaries: Literal["none", "reader", "answerer"] = setting(
        "none", "promsa: model that summarizes passages for the agent; set `answerer: server` for a larger one"
    )

    @property
    def system(self) -> str:
        """The system prompt; "" for none."""
        return SYSTEM if self.describe_tools else ""

    @property
    def calls(self) -> Mapping[str, int]:
        """Maximum calls of each tool."""
        return {IMAGE_SEARCH: self.image_calls, TEXT_SEARCH: self.text_calls}


@dataclass
class _Dialogue:
    """The trajectory of a question so far: rounds, passages shown, and calls by tool."""

    rounds: list[tuple[str, str]] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOOLS, 0))
    unread: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Counts of a trace."""
        return {f"{name}_calls": number for name, number in self.calls.items()} | {"calls_unread": self.unread}


@dataclass(frozen=True)
class Promsa:
    """ProMSA's steps for one question. An iteration is a reply.

    Attributes:
        settings: The settings.
        text_base: The base that text_search searches: `texts` if there is an index of passages, else `pairs`.
    """

    settings: PromsaSettings
    text_base: str

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        dialogue = _Dialogue()
        try:
            for turn in range(self.settings.turns):
                reply = yield from self._reply(turn, question, dialogue)
                action = read_action(reply.text)
                if action is not None and action.answer:
                    ended = f"answered in turn {turn + 1}"
                    return self._result(dialogue, action.answer, ended, reply.score)
                if action is None and not calls_tool(reply.text):
                    answer = _answer(reply.text)
                    return self._result(dialogue, answer, "a reply without an action", reply.score, "reply")
                dialogue.rounds.append((reply.text, ""))
                dialogue.rounds[-1] = (reply.text, (yield from self._call(turn, question, dialogue, action)))
        except BudgetSpent as spent:
            if dialogue.rounds:
                earlier_reply, result = dialogue.rounds[-1]
                dialogue.rounds[-1] = (earlier_reply, f"{result}\n\n{LAST}".strip())
            reply = yield from self._reply(len(dialogue.rounds), question, dialogue, "answer")
            return self._result(dialogue, _answer(reply.text), str(spent), reply.score, "budget")
        return self._result(dialogue, "", f"no answer in {self.settings.turns} turns")

    def _reply(self, turn: int, question: Question, dialogue: _Dialogue, operator: Any = "rewrite") -> Steps[Any]:
        """Generate the agent's next reply."""
        return (
            yield from write(
                operator,
                turn,
                first_turn(question),
                {"question": question.text},
                max_tokens=self.settings.max_record_tokens,
                system=self.settings.system,
                form="action",
                rounds=dialogue.rounds,
            )
        )

    def _call(self, turn: int, question: Question, dialogue: _Dialogue, action: Action | None) -> Steps[str]:
        """Execute a call, and return its result as the agent reads it."""
        tool = "" if action is None else _NAMES.get(action.tool, action.tool)
        if action is None or tool not in TOOLS or (tool == TEXT_SEARCH and not action.query):
            dialogue.unread += 1
            return "Error: not a call. Call image_search, or text_search with a query, as JSON."
        if dialogue.calls[tool] >= self.settings.calls[tool]:
            return f"Error: there are no further calls of {tool}."
        dialogue.calls[tool] += 1
        seen = {passage.id for passage in dialogue.passages}
        base = PAIRS if tool == IMAGE_SEARCH else self.text_base
        query = "" if tool == IMAGE_SEARCH else action.query
        count = self.settings.call_passages
        found = yield from search(turn, [query], {base: [count + len(seen)]}, question=query or question.text)
        passages = [passage for passage in merge(found) if passage.id not in seen][:count]
        dialogue.passages += passages
        texts = []
        for passage in passages:
            texts.append((yield from self._tool_text(turn, question, passage)))
        return "\n\n".join(f"- {text}" for text in texts) or "Nothing new was found."

    def _tool_text(self, turn: int, question: Question, passage: Passage) -> Steps[str]:
        """Return the text of a passage in a tool's result, summarized with `page_summaries`."""
        text = passage_text(passage)
        if self.settings.page_summaries == "none":
            return text
        reply = yield from write(
            "summarize",
            turn,
            SUMMARIZE,
            {"question": question.text, "page": text},
            max_tokens=self.settings.max_record_tokens,
            model=self.settings.page_summaries,
        )
        return reply.text or text

    def _result(
        self, dialogue: _Dialogue, answer: str, ended: str, score: float | None = None, fallback: str = ""
    ) -> TrajectoryResult:
        return TrajectoryResult(
            answer, ended, score, tuple(dialogue.passages), fallback=fallback, counts=dialogue.counts
        )


def _answer(reply: str) -> str:
    """Return the answer inside a reply's tags; without an action the whole reply; "" if it calls a tool."""
    if action := read_action(reply):
        return action.answer
    return "" if calls_tool(reply) else without_thoughts(reply.replace("thinking>", "think>"))


def first_turn(question: Question) -> str:
    """Return the template of the first user turn: the question, and the instruction for its answer."""
    return f"{{question}} {answer_prompt(question.answer_style, documents=False)}".strip()


def promsa(settings: PromsaSettings, parts: PipelineParts) -> Promsa:
    """Return the trajectory over the configured indexes."""
    return Promsa(settings, PAIRS if parts.texts is None else "texts")


RECIPES = iterative_recipe(
    "promsa",
    "ProMSA",
    PromsaSettings,
    promsa,
    requires=(LISTED_ENTRIES, OPTIONAL_TEXTS),
    pair_text="section",
    has_own_depth=True,
)
