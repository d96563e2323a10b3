"""Bodies of requests, checked: a question with its image, a conversation of OpenAI's API, a search."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from reflectune.inference.serving.problems import RequestProblem

MAX_CHARACTERS: Final = 2000
"""Maximum characters of a question or a query."""
MAX_QUERIES: Final = 4096
"""Maximum queries or images of a search, documents for each, and entries to exclude."""
Body = TypeVar("Body", bound=BaseModel)


class AnswerBody(BaseModel):
    """A question about an image; `image` is a data URL, and `pipeline` one of the server's."""

    image: str
    question: str
    pipeline: str = ""


class _Url(BaseModel):
    url: str


class _ContentPart(BaseModel):
    type: Literal["text", "image_url"]
    text: str = ""
    image_url: _Url | None = None


class _ChatMessage(BaseModel):
    role: str
    content: list[_ContentPart] = []
    """Content of the user's messages; that of other roles is ignored."""

    @model_validator(mode="before")
    @classmethod
    def _as_parts(cls, message: Any) -> Any:
        """Convert a text to one part, and drop the content of other roles."""
        if not isinstance(message, dict) or "content" not in message:
            return message
        content = message["content"] if message.get("role") == "user" else []
        return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


class ChatBody(BaseModel):
    """A request of OpenAI's chat completions. Other options are ignored: answers are greedy."""

    model: str
    messages: list[_ChatMessage]
    stream: bool | None = None
    n: int | None = None
    logprobs: bool | None = None

    def question(self, *, last_message: bool = False) -> AnswerBody:
        """Return the question of a conversation.

        Args:
            last_message: True to read the last message alone, with the latest image. Otherwise a system prompt and
                earlier rounds are refused.

        Raises:
            RequestProblem: It is not one message of the user with one image, or several answers are requested.
        """
        if self.n not in (None, 1):
            raise RequestProblem(400, "`n`: one answer is given; leave `n` out")
        if self.logprobs:
            raise RequestProblem(400, "`logprobs` are not returned; leave them out")
        roles = [message.role for message in self.messages]
        if last_message and roles[-1:] != ["user"]:
            raise RequestProblem(400, "`messages`: the last one must be of the role user")
        if roles != ["user"] and not last_message:
            problem = "send one message of the role user: a pipeline has its own prompts, and reads no earlier rounds"
            raise RequestProblem(400, f"`messages`: {problem} (set the server's `last_message` to read the last one)")
        rounds = [message.content for message in self.messages if message.role == "user"]
        images: list[str] = []
        for parts in rounds:
            images = [part.image_url.url for part in parts if part.image_url] or images
        if len(images) != 1:
            raise RequestProblem(400, f"`messages`: one image is needed, as `image_url`; found {len(images)}")
        text = "\n".join(part.text for part in rounds[-1] if part.text)
        return AnswerBody(image=images[0], question=text, pipeline=self.model)


class SearchBody(BaseModel):
    """A search in Search-R1's format: by texts, or by images as data URLs, with entries to exclude."""

    queries: list[str] = []
    images: list[str] = []
    exclude: list[str] = []
    topk: int | None = Field(None, ge=0)
    return_scores: bool = False

    def check(self) -> None:
        """Refuse a search with both texts and images, or above the limits."""
        if bool(self.queries) == bool(self.images) or (self.exclude and self.queries):
            raise RequestProblem(400, "give either `queries` (texts), or `images` (data URLs) and entries to `exclude`")
        longest = max(len(self.queries), len(self.images), len(self.exclude), self.topk or 0)
        if longest > MAX_QUERIES:
            problem = f"`queries`, `images`, `exclude` and `topk` are at most {MAX_QUERIES}"
            raise RequestProblem(413, f"{problem}; found {longest}")
        for query in self.queries:
            check_text("a query", query)


def parse(kind: type[Body], content: bytes) -> Body:
    """Parse a JSON body; refuse invalid JSON and bodies without a required field."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestProblem(400, f"`{place}`: {first['msg']}" if place else str(first["msg"])) from None


def check_text(name: str, text: str) -> None:
    """Refuse a text that is empty or too long."""
    if not text.strip():
        raise RequestProblem(400, f"{name} is empty")
    if len(text) > MAX_CHARACTERS:
        raise RequestProblem(413, f"{name} has {len(text):,} characters, more than {MAX_CHARACTERS:,}")
