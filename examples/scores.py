"""Scores of `metrics.json`, looked up and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BASELINES = {
    "closed book": "closed_book",
    "naive RAG, 1 entry": "naive_rag_article",
    "naive RAG, 5 entries": "naive_rag_articles",
    "filter: best 5 passages of 5 entries": "naive_rag_passages",
    "oracle: gold entry among 5": "oracle_articles",
    "oracle: gold entry alone": "oracle_article",
}


def at(metrics: Mapping[str, Any] | None, *path: str) -> Any:
    """Return the value at the end of a path of nested dictionaries, or None if it was not measured."""
    found: Any = metrics
    for name in path:
        found = (found or {}).get(name)
    return found


def equal_depth(metrics: dict[str, Any]) -> list[str]:
    """Return baselines at one entry and at as many as mR²AG reads, untuned and tuned, as lines of a table."""

    def cell(name: str) -> str:
        score = at(metrics, "pipelines", name, "overall")
        return f"{100 * score['value']:.1f}" if score else "–"

    lines = [f"{'':38}{'untuned':>9}{'tuned':>9}"]
    lines += [f"{title:38}{cell(name):>9}{cell(f'{name}_tuned'):>9}" for title, name in _BASELINES.items()]
    lines += [f"{'mR²AG, 5 entries':38}{'':>9}{cell('mr2ag'):>9}"]
    lines += [f"{'mR²AG, oracle entry':38}{'':>9}{cell('mr2ag_oracle'):>9}"]
    if lead := metrics["comparisons"].get("mr2ag - best_baseline"):
        low, high = 100 * lead["low"], 100 * lead["high"]
        lines.append(
            f"lead over the best of them ({metrics['best_baseline']}): {100 * lead['value']:+.1f} "
            f"({low:+.1f} to {high:+.1f})"
        )
    return lines
