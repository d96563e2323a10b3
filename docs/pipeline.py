"""Draws `pipeline.svg`: `python docs/pipeline.py`."""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 960, 250, 168, 62
FILES = {
    "data": (16, 24, "questions, images,", "knowledge base"),
    "index": (216, 24, "index", "images and titles"),
    "reflection": (416, 24, "reflection data", "Parquet, proof-read page"),
    "checkpoint": (616, 24, "checkpoint", "with its tokens"),
    "report": (776, 164, "metrics, report", "a trace a question"),
}
"""Files: left, top, and two lines of text."""
STEPS = (
    ("data", "index", "encode"),
    ("index", "reflection", "annotate, probe"),
    ("reflection", "checkpoint", "fine-tune, refine"),
)
GATES = ("retrieve?", "evidence?", "which answer?")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2933 }
  .small { font-size: 11px; fill: #52606d }
  rect { fill: #f5f7fa; stroke: #9aa5b1 }
  .gate { fill: #e3f2ec; stroke: #2f855a }
  path { stroke: #52606d; fill: none; marker-end: url(#tip) }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } .small { fill: #9aa5b1 } rect { fill: #1f2933; stroke: #616e7c }
    .gate { fill: #1c3a2e; stroke: #48bb78 } path { stroke: #9aa5b1 }
  }
"""


def box(left: int, top: int, first: str, second: str = "", kind: str = "", width: int = BOX_WIDTH) -> list[str]:
    """A rectangle with one or two lines of text."""
    middle, lines = left + width / 2, [first, second] if second else [first]
    drawn = [f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="8"/>']
    start = top + BOX_HEIGHT / 2 + 5 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        small = ' class="small"' if number else ""
        drawn.append(f'<text{small} x="{middle:g}" y="{start + 18 * number:g}" text-anchor="middle">{line}</text>')
    return drawn


def arrow(points: str, words: str = "", at: tuple[float, float] = (0, 0)) -> list[str]:
    """A line with a tip, and what happens along it."""
    label = [f'<text class="small" x="{at[0]:g}" y="{at[1]:g}" text-anchor="middle">{words}</text>'] if words else []
    return [f'<path d="M{points}"/>', *label]


def draw() -> str:
    """The whole image as SVG."""
    middle, bottom = 24 + BOX_HEIGHT / 2, 164 + BOX_HEIGHT / 2
    lines = [line for place in FILES.values() for line in box(*place)]
    for first, second, words in STEPS:
        start, end = FILES[first][0] + BOX_WIDTH, FILES[second][0]
        lines += arrow(f"{start} {middle:g}H{end - 6}", words, ((start + end) / 2, 16))
    lefts = [216, 396, 576]
    for left, words in zip(lefts, GATES, strict=True):
        lines += box(left, 164, words, kind="gate", width=130)
    lines += box(16, 164, "a question", "and its image", width=130)
    for start, end in ((146, 216), (346, 396), (526, 576), (706, 776)):
        lines += arrow(f"{start} {bottom:g}H{end - 6}")
    lines += arrow(f"281 {24 + BOX_HEIGHT}V158", "retrieve", (310, 130))
    lines += arrow(f"700 {24 + BOX_HEIGHT}V126H461V158", "the model reads its gates", (580, 120))
    place = 'markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto"'
    tip = f'<marker id="tip" {place}><path style="marker-end:none" d="M1 1L7 4L1 7"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = "<title>From a data set and a knowledge base to a checkpoint and its scores</title>"
    return "\n".join([head, title, f"<defs>{tip}</defs>", f"<style>{STYLE}</style>", *lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("pipeline.svg").write_text(draw(), encoding="utf-8")
