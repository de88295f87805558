"""What every panel is made of: log, errors, and choices."""

from __future__ import annotations

from parallab.errors import ClusterError, PlanError
from parallab.panels.parts import Choice, Log, Look, error_words


def test_the_log_keeps_the_newest_lines_and_escapes_them():
    log = Log(Look(), lines=2)
    for message in ("one", "two", "<three>"):
        log(message)
    assert "one" not in log.widget.value
    assert "&lt;three&gt;" in log.widget.value


def test_errors_in_words_with_details_folded():
    words = error_words(ClusterError("No <engines>."))
    assert words.startswith('<div class="pl-error">No &lt;engines&gt;.<details>')
    # Of a person's own mistake the sentence says it all.
    assert error_words(PlanError("seq=0.")) == '<div class="pl-error">seq=0.</div>'


def test_a_locked_choice_ignores_clicks():
    told = []
    choice = Choice(Look(), "x", {"a": "A", "b": "B"}, "a", lambda: told.append(1))
    choice.lock(True)
    choice._buttons["b"].click()
    assert choice.value == "a"
    choice.lock(False)
    choice.refuse({"b": "No."})
    choice._buttons["b"].click()
    assert (choice.value, choice._buttons["b"].tooltip, told) == ("a", "No.", [])
    choice.refuse({})
    choice._buttons["b"].click()
    assert (choice.value, told) == ("b", [1])


def test_other_options_keep_what_is_still_offered_and_close_the_rest():
    choice = Choice(Look(), "x", {1: "1", 2: "2", 4: "4"}, 2, lambda: None)
    one, four = choice._buttons[1], choice._buttons[4]
    choice.offer({1: "1", 2: "2", 3: "3", 6: "6"})
    assert choice.options == [1, 2, 3, 6]
    assert [b.description for b in choice.widget.children] == ["1", "2", "3", "6"]
    assert choice._buttons[1] is one
    assert "pl-chosen" in choice._buttons[2]._dom_classes
    assert four.comm is None
    choice._choose(4)
    assert choice.value == 2
    choice.lock(True)
    choice.offer({1: "1", 5: "5"})
    assert choice._buttons[5].disabled
