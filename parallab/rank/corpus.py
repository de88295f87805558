"""What is trained on: bytes of real text, the same for every strategy.

The default text is the Python standard library's own source code on this machine: real, everywhere,
and nothing to download. A token is a byte. A step's global batch depends on the text, the seed and
the step alone, never on the number of ranks.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from parallab.errors import CorpusError

# Enough that a short run never sees a passage twice, little enough to read in milliseconds.
LIBRARY_BYTES = 4 * 2**20


class Corpus:
    """A text as tokens.

    Args:
        path: a text file; None takes the standard library's sources.
        vocab: tokens are bytes modulo this, which changes nothing from 256 up.
        seed: of the random passages.

    Attributes:
        digest: of the bytes, to compare ranks' texts with.

    Raises:
        CorpusError: the file cannot be read.
    """

    def __init__(self, path: str | None, vocab: int, seed: int) -> None:
        data = _library() if path is None else _read(path)
        self.digest = hashlib.sha256(data).hexdigest()[:16]
        self._bytes = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._name = "the standard library" if path is None else path
        self._vocab = vocab
        self._seed = seed

    def batch(self, step: int, batch: int, seq: int) -> tuple[Tensor, Tensor]:
        """The global batch of one step.

        Returns:
            Token ids and the ids that follow them, both (batch, seq) of int64 on the CPU.

        Raises:
            CorpusError: the text is shorter than one sequence.
        """
        places = len(self._bytes) - seq
        if places < 1:
            raise CorpusError(
                f"{self._name} holds {len(self._bytes)} bytes, and one sequence needs {seq + 1}; "
                "choose a longer text or a shorter seq."
            )
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        starts = torch.randint(places, (batch, 1), generator=generator)
        passages = self._bytes[starts + torch.arange(seq + 1)].long() % self._vocab
        return passages[:, :-1].contiguous(), passages[:, 1:].contiguous()


def check_text(path: str | None) -> None:
    """Raises CorpusError unless `path` is None or a text that can be read."""
    if path is not None:
        _read(path)


def _read(path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"The text {path} cannot be read: {error.strerror}.") from error
    if not data:
        raise CorpusError(f"The text {path} is empty.")
    return data


def _library() -> bytes:
    parts: list[bytes] = []
    size = 0
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts.append(source.read_bytes())
        size += len(parts[-1])
        if size >= LIBRARY_BYTES:
            break
    if not size:
        raise CorpusError(
            "This Python has no standard-library sources to train on; give a text file (--text)."
        )
    return b"".join(parts)[:LIBRARY_BYTES]
