"""What a notebook shows of a Report, a Plan, a Model, Hardware, Advice or a Verification.

Tags and inline styles only: a notebook that is not trusted loses scripts and style sheets, and
keeps these. Nothing sets the colour of text, so that it takes the page's, light or dark; only the
coloured bars bring their own, and each of their figures is in the table beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from parallab.units import GIB, gib, percent, three_figures

if TYPE_CHECKING:
    from parallab.advise.advice import Advice, Option
    from parallab.cluster.verification import Verification
    from parallab.hardware import Hardware
    from parallab.models.spec import Model
    from parallab.plan import Plan
    from parallab.report import Rank, Report

# More would be scrolled past rather than read.
MOST_RANKS = 16
BAR_PIXELS = 160


class Shown:
    """What a notebook shows of an object, and what IPython prints of it.

    That is its whole text, or its `repr` where it is one of many in a list.
    """

    def __init_subclass__(cls) -> None:
        # IPython asks the very class that has a __repr__ of its own.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        kind = type(self).__name__.lower()
        shown: str = globals()[kind](self)  # the function of that name, below
        return shown

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self) if len(printer.stack) == 1 else repr(self))


# Each thing that can be shown.


def report(shown: Report) -> str:
    """The figures that people ask first, then memory of each rank and communication."""
    title = heading(f"{shown.source.capitalize()}: {shown.model.name}, {shown.plan.strategy} on "
                    f"{shown.plan.devices}", str(shown.plan))  # fmt: skip
    if not shown.steps:
        return block(title, sentence("No step was finished."))
    return block(
        title, table(*_figures(shown), left=range(9)), _memory(shown), _communication(shown)
    )


def plan(shown: Plan) -> str:
    """The strategy's idea, the degrees, and what one step does."""
    from parallab.catalog import strategy

    row = strategy(shown.strategy)
    split = {
        "ranks": f"{shown.devices} = dp {shown.dp} × pp {shown.pp} × tp {shown.tp}",
        "data axis": shown.data if shown.dp > 1 else "",
        "schedule": shown.schedule if shown.pp > 1 and shown.strategy != "mp" else "",
        "sequence parallel": "yes" if shown.sequence_parallel else "",
        "batch": f"{shown.batch:,} sequences of {shown.seq:,} tokens, {shown.rank_batch} on each "
        f"data-parallel rank in {shown.micro_batches} × {shown.micro_batch}",
        "precision": f"{shown.precision}, {shown.optimizer}",
        "recompute": shown.recompute if shown.recompute != "none" else "",
        "clipped to": f"{shown.clip:g}" if shown.clip is not None else "",
    }
    return block(
        heading(f"{row.title} on {shown.devices}", f"{row.implementation}. {row.source}."),
        sentence(row.idea),
        listing(split),
    )


def model(shown: Model) -> str:
    """Sizes, and where the parameters are."""
    from parallab.models.spec import count

    sizes = {
        "layers": f"{shown.layers:,}",
        "hidden, ffn": f"{shown.hidden:,}, {shown.ffn:,}",
        "heads": f"{shown.heads} of {shown.head_dim}, {shown.kv_heads} of keys and values",
        "vocabulary": f"{shown.vocab:,}, {'tied' if shown.tied else 'a head of its own'}",
        "context": f"{shown.context:,} tokens, positions: {shown.positions}",
        "experts": f"{shown.experts}, {shown.experts_per_token} for each token"
        if shown.experts
        else "",
    }
    parts = [("embedding", 1, count(shown.embedding_shapes()))]
    parts += [(f"block, as layer {first}" if len(shown.block_kinds()) > 1 else "block", layers,
               count(shown.block_shapes(first)))
              for first, layers in shown.block_kinds().items()]  # fmt: skip
    parts.append(("final norm" if shown.tied else "final norm and head", 1,
                  count(shown.head_shapes())))  # fmt: skip
    rows = [
        (escape(name), f"{times:,}", f"{each:,}", f"{times * each:,}",
         percent(times * each / shown.parameters, 1))
        for name, times, each in parts
    ]  # fmt: skip
    rows.append(("<b>all</b>", "", "", f"<b>{shown.parameters:,}</b>", ""))
    return block(
        heading(str(shown)),
        listing(sizes),
        table(("parameters of", "times", "each", "together", "share"), rows),
        sentence(shown.why_not_trainable or ""),
    )


def hardware(shown: Hardware) -> str:
    """The GPUs, what is free of them, and what connects them."""
    gpu, tera = shown.gpu, 1e12
    facts = {
        "GPUs": f"{shown.devices} = {shown.nodes} × {shown.gpus_per_node} × {gpu}",
        "each computes": f"{gpu.bf16_flops / tera:,.0f} TFLOP/s in bf16, "
        f"{gpu.fp32_flops / tera:,.0f} in fp32",
        "its memory moves": f"{gpu.bytes_per_second / tera:,.2f} TB/s",
        "free of each": _range(shown.free_bytes),
        "to fill": f"{_range(shown.room_bytes)}, headroom {percent(shown.headroom)}",
        "inside a node": str(shown.link) if shown.gpus_per_node > 1 else "",
        "between nodes": str(shown.between) if shown.nodes > 1 else "",
        "source": gpu.source,
    }
    return block(heading(f"{shown.devices} × {gpu.title or gpu.name}"), listing(facts))


def advice(shown: Advice) -> str:
    """The field's rule, the plans that fit, and what does not."""
    from parallab.advise.advice import refused, title

    first, *rest = title(shown)
    parts = [heading(first, " · ".join(rest)),
             sentence(f"{shown.rule.situation}. {shown.rule.reason}")]  # fmt: skip
    for name, options in (("plans that fit, fastest first", shown.options),
                          ("the best of the other kinds", shown.slower)):  # fmt: skip
        if options:
            parts.append(table((name, "GiB", "of", "s a step", "tokens/s each", "of peak", "why"),
                               [_option(option) for option in options], left={0, 6}))  # fmt: skip
    lines = refused(shown)
    if lines:
        parts.append(fold(lines[0], "<br>".join(escape(line.strip(" -")) for line in lines[1:])))
    return block(*parts, sentence(shown.remedy or ""))


def verification(shown: Verification) -> str:
    """The verdict, and the losses of the plan beside those of one device."""
    verdict, _, *rest = str(shown).splitlines()
    rows = [
        (f"{step}", f"{loss:.6f}", f"{whole:.6f}", f"{difference:.1e}")
        for step, (loss, whole, difference) in enumerate(
            zip(shown.losses, shown.reference_losses, shown.loss_differences, strict=True)
        )
    ]
    said = rest[len(rows) + 2 :]  # after the same table as text
    return block(
        heading(verdict, str(shown.plan)),
        table(("step", "loss", "one device", "relative difference"), rows, left=()),
        *(sentence(line) for line in said),
    )


# What they are made of.


def block(*parts: str) -> str:
    """Parts below one another."""
    return f'<div style="line-height:1.4">{"".join(parts)}</div>'


def heading(words: str, below: str = "") -> str:
    """A title, and what is less important."""
    large = f'<div style="font-weight:bold">{escape(words)}</div>' if words else ""
    small = f'<div style="opacity:0.75;font-size:90%">{escape(below)}</div>' if below else ""
    return large + small


def sentence(words: str) -> str:
    """A paragraph; nothing where there is nothing to say."""
    return f'<div style="max-width:720px;margin:4px 0">{escape(words)}</div>' if words else ""


def fold(summary: str, inside: str) -> str:
    """What is shown when it is asked for; `inside` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def preformatted(text: str) -> str:
    """Text as it is, such as a command."""
    return f'<pre style="margin:2px 0 6px">{escape(text)}</pre>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Iterable[int] = (0,),
) -> str:
    """Cells are HTML; columns of numbers are flush right, those in `left` flush left."""
    words, numbers = "text-align:left", "text-align:right;white-space:nowrap"
    flush_left = set(left)

    def line(row: Sequence[str], tag: str) -> str:
        cells = (
            f'<{tag} style="padding:1px 10px 1px 0;vertical-align:top;'
            f'{words if i in flush_left else numbers}">{cell}</{tag}>'
            for i, cell in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"

    top = line([escape(name) if "<" not in name else name for name in head], "th") if head else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<table style="border-collapse:collapse;margin:4px 0">{top}{body}</table>'


def listing(facts: Mapping[str, str]) -> str:
    """Names and what they are; what is empty is left out."""
    rows = [(f"<b>{escape(name)}</b>", escape(what)) for name, what in facts.items() if what]
    return table((), rows, left={0, 1})


def bar(parts: Mapping[str, float], whole: float) -> str:
    """Bytes by category as one bar, whose whole length is `whole` bytes."""
    pieces = "".join(
        f'<span title="{escape(f"{name} {_amount(size)}")}" style="display:inline-block;'
        f"height:12px;width:{BAR_PIXELS * size / whole:.1f}px;"
        f'background-color:{_colour(name)}"></span>'
        for name, size in parts.items()
        if size
    )
    return f'<span style="white-space:nowrap">{pieces}</span>'


def key(category: str) -> str:
    """A category's name with its colour."""
    return (
        '<span style="display:inline-block;width:9px;height:9px;margin-right:3px;'
        f'background-color:{_colour(category)}"></span>{escape(category)}'
    )


def _colour(category: str) -> str:
    from parallab.plots.style import CATEGORY_COLOURS

    return CATEGORY_COLOURS[category]


def _amount(size_bytes: float) -> str:
    from parallab.plots.style import in_words

    return in_words(size_bytes)


def _figures(shown: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The main figures: headings, and one row."""
    facts = {"highest peak": _amount(shown.peak_bytes),
             "sent in a step": f"{_amount(shown.wire_bytes)} by the busiest rank"}  # fmt: skip
    seconds, bubble = shown.step_seconds, shown.bubble
    if seconds:
        facts["step"] = f"{seconds * 1e3:,.1f} ms"
        facts["tokens per second"] = f"{shown.tokens_per_second:,.0f}"
    if bubble is not None:
        facts["bubble"] = f"{percent(bubble.idle_of_total, 1)} of the time"
    if not math.isnan(shown.losses[-1]):
        facts["loss"] = f"{shown.losses[0]:.4f} → {shown.losses[-1]:.4f} in {shown.steps} steps"
    return tuple(facts), [tuple(f"<b>{escape(value)}</b>" for value in facts.values())]


def _memory(shown: Report) -> str:
    """A row and a bar for each rank."""
    from parallab.plots.style import unit_for
    from parallab.report import CATEGORIES

    ranks = shown.ranks[:MOST_RANKS]
    highest = max(rank.peak.peak_bytes for rank in ranks) or 1
    known = [c for c in CATEGORIES if any(rank.peak.at_peak.get(c) for rank in ranks)]
    head = ("rank", "device", "peak", "", *map(key, known))
    rows = [_rank(shown, rank, known, highest) for rank in ranks]
    more = len(shown.ranks) - len(ranks)
    return (
        '<div style="overflow-x:auto;font-size:90%">'
        f"{table(head, rows, left={0, 1, 3})}</div>"
    ) + sentence(
        f"Memory at the peak in {unit_for(highest).name}, {shown.source}"
        + (", of traced steps; workspace is what the allocator held beyond all tensors."
           if known and shown.source == "measured" else ".")
        + (f" {more} more rank{'s are' if more > 1 else ' is'} not listed." if more else "")
    )  # fmt: skip


def _rank(shown: Report, rank: Rank, known: list[str], highest: int) -> tuple[str, ...]:
    from parallab.plots.style import small_number, unit_for

    size_bytes = unit_for(highest).size_bytes
    memory = rank.peak
    like = shown.environment.get("represents", {}).get(str(rank.rank), 1)
    number = f"{rank.rank} (of {like})" if like > 1 else f"{rank.rank}"
    parts = {c: memory.at_peak.get(c, 0) for c in known}
    return (
        number, escape(rank.device), f"<b>{small_number(memory.peak_bytes / size_bytes)}</b>",
        bar(parts, highest),
        *(escape(small_number(size / size_bytes)) if size else "" for size in parts.values()),
    )  # fmt: skip


def _communication(shown: Report) -> str:
    totals = shown.communication()
    if not totals:
        return sentence("Nothing is sent.")
    rows = [
        (escape(op), escape(axis), f"{row['count']:,}", f"{row['payload_bytes']:,}",
         f"{row['wire_bytes']:,}")
        for (op, axis), row in totals.items()
    ]  # fmt: skip
    return table(("operation", "axis", "calls", "payload bytes", "wire bytes"), rows, {0, 1}) + (
        sentence(f"One step of the rank that sends most: calls and payload {shown.source}, wire "
                 "computed for an ideal ring.")
    )  # fmt: skip


def _option(option: Option) -> tuple[str, ...]:
    from parallab.advise.advice import describe

    step = option.step
    return (
        f"{escape(option.family)}<br>{escape(describe(option.plan))}",
        f"{option.need_bytes / GIB:,.1f}", f"{option.room_bytes / GIB:,.1f}",
        three_figures(step.seconds), f"{step.tokens_per_second / step.devices:,.0f}",
        percent(step.utilization), escape(option.reason),
    )  # fmt: skip


def _range(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return gib(least) if least == most else f"{gib(least)} to {gib(most)}"
