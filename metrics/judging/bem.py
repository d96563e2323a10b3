"""BEM, the answer-equivalence model of E-VQA's official score, in PyTorch, from a converted checkpoint.

BEM (Bulian et al. 2022) is published as a TensorFlow module. `reflectune.examples.bem.conversion` turns it into a
checkpoint that this module loads by folder or hub name, and checks it against logits that the original printed.
Nothing stands in for it: a checkpoint that was not checked is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_record
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.weights import UNLOADABLE, check_finite, check_names

if TYPE_CHECKING:
    import torch
    from transformers import BertForSequenceClassification, BertTokenizer

Logits = npt.NDArray[np.float64]
Segments = tuple[str, str, str]
"""(candidate, reference, question), in the order that BEM reads them."""

LONGEST = 512
RECORD = "bem.json"
"""File next to the weights that records how they were checked, and whether padding is masked."""


class TooLongError(ValueError):
    """Candidate, reference and question together have more than 512 word pieces; the official program stops there."""


class Bem:
    """BEM with its tokenizer. An instance is a `reflectune.metrics.official.evqa.BemLogits`.

    Attributes:
        name: The folder or hub name that it was loaded by.
        fingerprint: A hash of its files.
    """

    def __init__(
        self,
        model: BertForSequenceClassification,
        tokenizer: BertTokenizer,
        *,
        mask_padding: bool,
        name: str = "",
        fingerprint: str = "",
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self._model, self._tokenizer, self._mask_padding = model.eval(), tokenizer, mask_padding

    def __call__(self, candidate: str, reference: str, question: str) -> list[float]:
        """Return the two logits (not equivalent, equivalent) of one triple; TooLongError beyond 512 word pieces."""
        return [float(value) for value in self.logits([(candidate, reference, question)])[0]]

    def logits(self, triples: Sequence[Segments], batch_size: int = 32) -> Logits:
        """Return the logits of many triples, shape (triples, 2), computed in batches of similar length.

        Raises:
            TooLongError: A triple has more than 512 word pieces (`length`).
        """
        import torch

        encoded = [self.encode(triple) for triple in triples]
        order = sorted(range(len(encoded)), key=lambda row: len(encoded[row][0]))
        triple_logits = np.zeros((len(encoded), 2))
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                output = self._model(**self._batch([encoded[row] for row in rows]))
                triple_logits[rows] = output.logits.double().cpu().numpy()  # (batch, 2)
        return triple_logits

    def length(self, triple: Segments) -> int:
        """Return word pieces of a triple, with [CLS] and the three [SEP]."""
        return 4 + sum(len(self.word_pieces(text)) for text in triple)

    def word_pieces(self, text: str) -> list[int]:
        """Return ids of a text's word pieces; "[SEP]" written in a text is plain text, as in the original."""
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [int(piece_id) for piece_id in ids]

    def encode(self, triple: Segments) -> tuple[list[int], list[int]]:
        """Return (ids, segment ids) of `[CLS] candidate [SEP] reference [SEP] question [SEP]`; segments are 0, 1, 2.

        Raises:
            TooLongError: There are more than 512 ids.
        """
        start, end = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        parts = [[*self.word_pieces(text), end] for text in triple]
        parts[0] = [start, *parts[0]]
        ids = [piece_id for part in parts for piece_id in part]
        if len(ids) > LONGEST:
            raise TooLongError(f"{len(ids)} word pieces, more than the {LONGEST} that BEM reads: {triple[0][:80]!r} …")
        return ids, [segment for segment, part in enumerate(parts) for _ in part]

    def _batch(self, encoded: Sequence[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
        """Pad with 0: to the longest of the batch if padding is masked, else to 512 as in the original."""
        import torch

        width = max(len(ids) for ids, _ in encoded) if self._mask_padding else LONGEST
        ids = torch.zeros((len(encoded), width), dtype=torch.long)  # (batch, width)
        segments = torch.zeros_like(ids)
        for row, (piece_ids, parts) in enumerate(encoded):
            ids[row, : len(piece_ids)] = torch.tensor(piece_ids)
            segments[row, : len(piece_ids)] = torch.tensor(parts)
        mask = (ids != 0).long() if self._mask_padding else torch.ones_like(ids)
        device = self._model.device
        return {"input_ids": ids.to(device), "token_type_ids": segments.to(device), "attention_mask": mask.to(device)}


def load_bem(name: str, *, device: str = "cpu") -> Bem:
    """Load a converted BEM.

    Args:
        name: A folder that `python -m reflectune.examples.bem.convert` wrote, or a hub id with the same files.
        device: Device of the model; it computes in full precision.

    Raises:
        UserError: The checkpoint is missing, not BEM, or was never checked against the original; or tensors
            of it are missing, of a different shape, or not finite.
    """
    from transformers import BertForSequenceClassification
    from transformers.utils.hub import cached_file

    try:
        files = {
            file: Path(str(cached_file(name, file)))
            for file in (RECORD, "config.json", "vocab.txt", "model.safetensors")
        }
        kind: Any = BertForSequenceClassification  # its types don't know the pair that `output_loading_info` returns
        model, report = kind.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except UNLOADABLE as error:
        raise UserError(
            f"BEM can't be loaded from {name!r}: {error}. Expected a folder or hub id with config.json, "
            f"model.safetensors, vocab.txt and {RECORD}; `python -m reflectune.examples.bem.convert --help` makes one"
        ) from error
    check_names(f"BEM in {name!r}", report)
    check_finite(f"BEM in {name!r}", model)
    record = read_record(files[RECORD], "the record of its conversion")
    return Bem(
        model.to(device),
        load_tokenizer(files["vocab.txt"]),
        mask_padding=_checked(name, record, model.config),
        name=name,
        fingerprint=file_fingerprint(*files.values()),
    )


def load_tokenizer(vocabulary: Path) -> BertTokenizer:
    """Return the uncased word-piece tokenizer of a vocab.txt, one word piece a line.

    Raises:
        UserError: The file is not such a vocabulary.
    """
    from transformers import BertTokenizer

    try:
        pieces = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{vocabulary} is not UTF-8 ({error}): it is not BERT's vocab.txt") from error
    if len(missing := {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} - set(pieces)):
        raise UserError(f"{vocabulary} lacks {', '.join(sorted(missing))}: it is not BERT's vocab.txt")
    return BertTokenizer(vocab={piece: row for row, piece in enumerate(pieces)}, do_lower_case=True)


def _checked(name: str, record: dict[str, Any], config: Any) -> bool:
    """Return True if padding is masked, for a checkpoint that is BEM and was checked."""
    if not isinstance(record.get("mask_padding"), bool) or not record.get("checked_on"):
        raise UserError(f"{name}: {RECORD} does not say that the checkpoint was checked; convert it again")
    if config.num_labels != 2 or config.type_vocab_size < 3:
        raise UserError(
            f"{name} is not BEM: it has {config.num_labels} labels and {config.type_vocab_size} segments, "
            "expected 2 and at least 3"
        )
    return record["mask_padding"]
