"""Words that the VQA family of metrics rewrites before it compares: digits, contractions. Data, with its source.

Both lists are those of the VQA evaluation (Antol et al. 2015) as E-VQA's and LAVIS's evaluators carry them. They are
kept whole, odd entries included, since a score must equal the official one to the last digit.
"""

from __future__ import annotations

from types import MappingProxyType

DIGITS = MappingProxyType(
    {"none": "0"}
    | {word: str(number) for number, word in enumerate("zero one two three four five six seven eight nine ten".split())}
)
"""Number words to digits; "none" counts as zero."""

VERDICTS = MappingProxyType({"entailment": "yes", "true": "yes", "contradiction": "no", "false": "no"})
"""What E-VQA, and not VQA, reads as yes and no."""

_WRITTEN_OUT = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's I'd've I'm I've isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've
    needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll
    somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd
    there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
    what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
    would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


def _slips(word: str) -> list[str]:
    """The word with one of its apostrophes left out, once for each of them."""
    return [word[:i] + word[i + 1 :] for i, letter in enumerate(word) if letter == "'"]


CONTRACTIONS = MappingProxyType(
    {slip: word for word in _WRITTEN_OUT.split() for slip in _slips(word)} | {"somebody'd": "somebodyd"}
)
"""A contraction that lacks one apostrophe, to its full form. "somebody'd" goes the wrong way round, as it does there.

"I'd've", "I'm" and "I've" are there too, and never apply: the evaluators lower-case first.
"""
