"""How the engines are, as data and as a table for a notebook."""

from __future__ import annotations

import socket
from html import escape
from typing import Any

import psutil

from parallab.cluster.pool import Pool

_CELL = "padding:2px 12px 2px 0;text-align:left;font-weight:"


def rank_health(pool: Pool, rank: int, state: str) -> dict[str, Any]:
    """One rank's "rank", "state", "device", "host", "pid" and "memory_bytes".

    Memory is resident, of the engine's process; None where that is gone or on another host.
    """
    facts = pool.facts.get(rank, {})
    here = facts.get("host") == socket.gethostname()
    return {
        "rank": rank,
        "state": state,
        "device": facts.get("device", pool.kind),
        "host": facts.get("host", ""),
        "pid": facts.get("pid"),
        "memory_bytes": _resident_bytes(facts["pid"]) if here else None,
    }


def health_table(title: str, rows: list[dict[str, Any]]) -> str:
    """The rows as HTML that takes its colours from the page, light or dark."""
    names = ("rank", "state", "device", "host", "pid", "memory")
    head = "".join(f'<th style="{_CELL}600">{name}</th>' for name in names)
    body = ""
    for row in rows:
        memory = row["memory_bytes"]
        shown = {**row, "memory": "" if memory is None else f"{memory / 2**20:,.0f} MiB"}
        cells = (f'<td style="{_CELL}400">{escape(str(shown[name]))}</td>' for name in names)
        body += f"<tr>{''.join(cells)}</tr>"
    table = f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'
    return f"<div>{escape(title)}</div>{table}"


def _resident_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None
