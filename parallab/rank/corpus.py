"""What is trained on: bytes of real text, the same for every strategy.

The default text is the Python standard library's own source code on this machine: real, everywhere,
and nothing to download. A token is a byte. A step's global batch depends on the text, the seed and
the step alone, never on the number of ranks.
"""

from __future__ import annotations

import hashlib
import stat
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from parallab.errors import CorpusError

if TYPE_CHECKING:  # the terminal checks a text without waiting for torch
    from torch import Tensor

# Enough that a short run never sees a passage twice, little enough to read in milliseconds.
LIBRARY_BYTES = 4 * 2**20
# Every rank holds the whole text.
MAX_TEXT_BYTES = 2**30


class Corpus:
    """A text as tokens.

    Args:
        path: a text file; None takes the standard library's sources.
        vocab: tokens are bytes modulo this, which changes nothing from 256 up.
        seed: of the random passages.

    Attributes:
        digest: of the bytes, to compare ranks' texts with.

    Raises:
        CorpusError: the file cannot be read, is empty or larger than MAX_TEXT_BYTES.
    """

    def __init__(self, path: str | None, vocab: int, seed: int) -> None:
        import torch

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
        import torch

        _check_length(self._name, len(self._bytes), seq)
        places = len(self._bytes) - seq
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        starts = torch.randint(places, (batch, 1), generator=generator)
        passages = self._bytes[starts + torch.arange(seq + 1)].long() % self._vocab
        return passages[:, :-1].contiguous(), passages[:, 1:].contiguous()


def check_text(path: str | None, seq: int = 0) -> None:
    """Raises CorpusError unless `path` is None or a text that holds a sequence of `seq` tokens."""
    if path is not None:
        _check_length(path, len(_read(path, seq + 1)), seq)


def _check_length(name: str, size: int, seq: int) -> None:
    if size <= seq:
        raise CorpusError(
            f"{name} holds {size} bytes, and one sequence needs {seq + 1}; "
            "choose a longer text or a shorter seq."
        )


def _read(path: str, limit: int = -1) -> bytes:
    """A text file's first `limit` bytes, or all of them."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise CorpusError(f"The text {path} is a directory, pipe or device, not a file.")
        if status.st_size > MAX_TEXT_BYTES:
            raise CorpusError(
                f"The text {path} holds {status.st_size:,} bytes, and every rank holds all of it; "
                f"choose one of at most {MAX_TEXT_BYTES:,} bytes."
            )
        with Path(path).open("rb") as file:
            data = file.read(limit)
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
