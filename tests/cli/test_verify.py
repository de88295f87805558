"""`parallab verify`: its words and its exit status."""

import parallab as pl
from parallab.cli import main
from parallab.cluster import Verification


def verification(*differences, loss=5.4):
    tensors = {f"blocks.{i}.mlp.up.weight": d for i, d in enumerate(differences)}
    return Verification(pl.Plan("zero3"), (5.5, loss), (5.5, 5.4), tensors, finite=True)


def test_verify_of_the_same_weights(capsys, stand_in):
    stand_in.verification = verification(1e-8, 3e-5)
    argv = "verify --model nano --strategy zero3 --steps 2 --seed 7 --device cpu"
    assert main(argv.split()) == 0
    out, err = capsys.readouterr()
    assert out == f"{stand_in.verification}\n"
    assert "5.400000" in out
    assert "3.0e-05 (blocks.1.mlp.up.weight)" in out
    assert err == "a library's chatter\n"
    [(model, plan, options)] = stand_in.verified
    assert (model, plan) == (pl.Model("nano"), pl.Plan("zero3"))
    assert options == {"steps": 2, "seed": 7, "text": None}


def test_verify_of_other_weights_names_the_first(capsys, stand_in):
    stand_in.verification = verification(1e-8, 2e-3, 5e-3)
    assert main(["verify", "--strategy", "zero3"]) == 1
    assert "First to diverge: blocks.1.mlp.up.weight, by 2.0e-03." in capsys.readouterr().out


def test_verify_of_another_loss_says_which_step(capsys, stand_in):
    stand_in.verification = verification(1e-8, loss=5.41)
    assert main(["verify", "--strategy", "zero3"]) == 1
    assert "the loss of step 1" in capsys.readouterr().out
