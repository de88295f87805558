"""What a notebook and IPython show: html that needs no trust, and text."""

import re
from html.parser import HTMLParser

import pytest
from IPython.lib.pretty import pretty

import parallab as pl
from parallab.cluster.verification import Verification
from parallab.models.spec import PRESETS
from tests.recorded import recorded
from tests.synthetic import fake_report

ZERO3 = pl.Plan("zero3", 4)
ADVICE = pl.advise(pl.Model("llama-3.1-8b"), gpu="h100", nodes=2)
VERIFIED = Verification(ZERO3, (5.5, 5.25), (5.5, 5.2500001), {"head.weight": 1e-6}, True)
THINGS = {
    "model": pl.Model("mini"),
    "plan": ZERO3,
    "3d": pl.Plan("3d", dp=2, pp=2, tp=2, zero=3, clip=1.0),
    "measured": recorded(),
    "bubble": fake_report("pp", 4),
    "predicted": pl.predict(pl.Model("mini"), pl.Plan("zero3", 1024)),
    "empty": recorded(0),
    "hardware": pl.Hardware("a100-80", nodes=2),
    "advice": ADVICE,
    "verification": VERIFIED,
    "take home": pl.take_home(pl.Model("mini"), ZERO3),
}
# What JupyterLab leaves of a notebook that is not trusted, as far as it is used here.
TAGS = {"div", "span", "table", "tr", "th", "td", "b", "br", "pre", "details", "summary"}
STYLES = {
    "background-color", "border-collapse", "display", "font-size", "font-weight", "height",
    "line-height", "margin", "margin-right", "max-width", "opacity", "overflow-x", "padding",
    "text-align", "vertical-align", "white-space", "width",
}  # fmt: skip


class Page(HTMLParser):
    """Tags, attributes and words of a page; complains where tags do not match."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.styles, self.words, self.open = set(), set(), set(), [], []
        self.feed(source)
        assert self.open == []
        self.text = " ".join(self.words)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        rules = dict(attributes).get("style", "").split(";")
        self.styles |= {rule.partition(":")[0] for rule in rules if rule}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS.keys())
def test_html_needs_no_trust_and_takes_the_pages_colours(thing):
    page = Page(thing._repr_html_())
    assert page.tags <= TAGS
    assert page.attributes <= {"style", "title"}
    assert page.styles <= STYLES  # no `color`: text is the page's, light or dark


@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS.keys())
def test_text_is_the_whole_alone_and_one_line_in_a_list(thing):
    assert pretty(thing) == str(thing)
    if not isinstance(thing, pl.take_home(pl.Model("mini"), ZERO3).__class__):
        assert repr(thing) in pretty([thing])
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200


def test_a_report_shows_its_figures():
    page = Page(recorded()._repr_html_())
    for words in (
        "Measured: nano, ddp on 2", "1.00 MiB", "489 KiB by the busiest rank", "210.0 ms",
        "5.5000 → 5.1000 in 5 steps", "all_reduce", "500,992", "workspace",
    ):  # fmt: skip
        assert words in page.text
    widths = [
        float(w) for w in re.findall(r"width:([\d.]+)px;background", recorded()._repr_html_())
    ]
    # Two ranks of three categories; the fuller one is the whole bar.
    assert len(widths) == 6
    assert sum(widths[3:]) == pytest.approx(160, abs=0.2)


def test_a_rank_that_stands_for_others_says_so():
    text = Page(THINGS["predicted"]._repr_html_()).text
    assert re.search(r"128 \(of 128\)", text)
    many = Page(fake_report("ddp", 20)._repr_html_()).text
    assert "4 more ranks are not listed." in many


def test_a_model_shows_where_its_parameters_are():
    text = " ".join(Page(pl.Model("micro")._repr_html_()).text.split())
    assert "embedding 1 32,768 32,768" in text
    assert "1,049,728" in text
    assert "cannot be trained" not in text
    sparse = pl.Model("mini", experts=4, experts_per_token=1, expert_ffn=64)
    assert "can be predicted but not trained" in Page(sparse._repr_html_()).text


def test_advice_shows_its_reasons():
    text = Page(ADVICE._repr_html_()).text
    assert ADVICE.rule.reason in text
    assert all(option.reason in text for option in ADVICE.options)


def test_what_a_person_named_is_text_not_html():
    model = pl.Model("<script>alert(1)</script>", layers=2, hidden=32, heads=4, ffn=64, vocab=257)
    report = recorded()
    report.model = model
    report.ranks[0].device = "<img src=x onerror=alert(1)>"
    for thing in (model, report, pl.take_home(model, ZERO3)):
        page = Page(thing._repr_html_())
        assert page.tags <= TAGS
        assert "<script>" in page.text


@pytest.mark.parametrize("name", PRESETS)
def test_repr_makes_a_model_again(name):
    model = pl.Model(name)
    assert repr(model) == f"Model('{name}')"
    changed = pl.Model(name, layers=3, context=512)
    assert eval(repr(changed), {"Model": pl.Model}) == changed


@pytest.mark.parametrize(
    "model",
    [
        pl.Model("micro", heads=2),
        pl.Model("micro", hidden=256),
        pl.Model("mine", layers=2, hidden=32, heads=4, ffn=64, vocab=257, tied=True),
        pl.Model("odd", layers=2, hidden=32, heads=3, head_dim=8, ffn=64, vocab=257),
    ],
    ids=str,
)
def test_repr_makes_a_changed_model_again(model):
    assert eval(repr(model), {"Model": pl.Model}) == model


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (ZERO3, "Plan('zero3', devices=4)"),
        (pl.Plan("single"), "Plan('single', devices=1)"),
        (pl.Plan("mp", 2), "Plan('mp', devices=2)"),
        (pl.Plan("ddp", 2, batch=8, seq=64, clip=1.0),
         "Plan('ddp', devices=2, batch=8, seq=64, clip=1.0)"),
        (pl.Plan("3d", dp=2, pp=2, tp=1, schedule="gpipe", zero=0, micro_batches=8),
         "Plan('3d', devices=4, dp=2, pp=2, tp=1, zero=0, batch=32, micro_batches=8, "
         "schedule='gpipe')"),
    ],
)  # fmt: skip
def test_repr_makes_a_plan_again(plan, shown):
    assert repr(plan) == shown
    assert eval(shown, {"Plan": pl.Plan}) == plan
