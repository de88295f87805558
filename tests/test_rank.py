"""The decoder and the text: what every strategy starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallab.errors import CorpusError
from parallab.models.spec import PRESETS, Model
from parallab.plan import Plan
from parallab.rank.corpus import Corpus, check_text
from parallab.rank.decoder import Decoder, rotate
from parallab.rank.trainer import Trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", PRESETS)
def test_the_module_is_the_spec_tensor_for_tensor(name: str) -> None:
    model = Model(name)
    built = {n: tuple(p.shape) for n, p in Decoder(model, seq=8).named_parameters()}
    described = {n: shape for unit in model.units().values() for n, shape in unit.items()}
    assert list(built.items()) == list(described.items())
    assert sum(p.numel() for p in Decoder(model, seq=8).parameters()) == model.parameters


def _decoder(seed: int = 0, **choices: object) -> Decoder:
    decoder = Decoder(Model("nano"), seq=16, **choices)  # type: ignore[arg-type]
    decoder.materialise(CPU, torch.float32, seed)
    return decoder


def test_a_part_of_the_model_holds_the_whole_models_numbers() -> None:
    whole = dict(_decoder().named_parameters())
    for name, weight in _decoder(blocks=range(1, 2), embedding=False).named_parameters():
        assert torch.equal(weight, whole[name])


def test_first_weights_depend_on_the_seed() -> None:
    weights = [_decoder(seed).embedding.tokens.weight for seed in (0, 0, 1)]  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.05)


def test_no_token_sees_a_later_one() -> None:
    decoder = _decoder()
    ids = torch.arange(16).unsqueeze(0)
    changed = ids.clone()
    changed[0, 9] = 200
    same = (decoder(ids) == decoder(changed)).all(dim=-1)[0]
    assert same.tolist() == [True] * 9 + [False] * 7


def test_rotation_keeps_lengths_and_shows_only_distances() -> None:
    decoder = _decoder()
    assert decoder.rotary is not None
    q, k = torch.randn(2, 16)
    turned_q, turned_k = (rotate(x.expand(1, 16, 1, 16), decoder.rotary.table) for x in (q, k))
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(1, 16, 1), rtol=1e-5)
    scores = (turned_q[0, :, 0] @ turned_k[0, :, 0].T).diagonal(offset=-3)
    assert torch.allclose(scores, scores[0].expand(13), atol=1e-4)


def test_recompute_changes_no_gradient() -> None:
    ids = torch.arange(32).view(2, 16)
    gradients = []
    for recompute in (False, True):
        decoder = _decoder(recompute=recompute)
        decoder(ids).square().mean().backward()
        gradients.append([p.grad for p in decoder.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # type: ignore[arg-type]


def test_a_tied_head_is_the_embedding() -> None:
    model = Model("mine", layers=1, hidden=16, heads=2, ffn=32, vocab=64, tied=True)
    decoder = Decoder(model, seq=8)
    decoder.materialise(CPU, torch.float32, 0)
    assert decoder.head is not None
    assert decoder.embedding is not None
    assert decoder.head.output.weight is decoder.embedding.tokens.weight


def test_the_batch_depends_on_text_seed_and_step_alone() -> None:
    corpus, again, other = Corpus(None, 256, 0), Corpus(None, 256, 0), Corpus(None, 256, 1)
    tokens, targets = corpus.batch(3, batch=4, seq=32)
    assert tokens.shape == targets.shape == (4, 32)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, again.batch(3, 4, 32)[0])
    assert not torch.equal(tokens, corpus.batch(4, 4, 32)[0])
    assert not torch.equal(tokens, other.batch(3, 4, 32)[0])
    assert corpus.digest == other.digest


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abcabcabc")
    tokens, targets = Corpus(str(path), 256, 0).batch(0, batch=2, seq=8)
    assert tokens.tolist() == [list(b"abcabcab")] * 2
    assert targets.tolist() == [list(b"bcabcabc")] * 2
    with pytest.raises(CorpusError, match="9 bytes, and one sequence needs 10"):
        Corpus(str(path), 256, 0).batch(0, batch=2, seq=9)


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    check_text(None)
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "directory"),
                         (empty, "empty")):  # fmt: skip
        with pytest.raises(CorpusError, match=reason):
            check_text(str(path))


def test_tokens_stay_within_a_small_vocabulary() -> None:
    tokens, _ = Corpus(None, 101, 0).batch(0, batch=8, seq=64)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 101


def test_traced_steps_are_0_1_and_every_fifth() -> None:
    trainer = Trainer(Model("nano"), Plan("single", seq=8), CPU)
    assert [s for s in range(12) if trainer.step().traced] == [0, 1, 6, 11]
    trainer.close()
    trainer.close()
