"""HTML in small pieces: everything that comes from a study is escaped here, and only here."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from orchestrator.report.words import Cell, cell, columns, heading


class Html(str):
    """Text that is HTML already; a plain str is escaped where it is put in."""

    __slots__ = ()


def text(value: str) -> Html:
    return value if isinstance(value, Html) else Html(escape(value))


def element(name: str, *inside: str, css: str | None = None) -> Html:
    """``<name class=css>inside</name>``, with plain strings escaped."""
    attribute = f' class="{escape(css)}"' if css else ""
    return Html(f"<{name}{attribute}>{''.join(text(i) for i in inside)}</{name}>")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, kinds: str = "") -> Html:
    """A table that scrolls sideways on a narrow screen.

    One letter of ``kinds`` for each column: w words, n number, t text that needs room. Columns
    beyond it hold numbers; without it the first holds words.
    """
    kinds = (kinds or "w").ljust(len(headings), "n")
    css = [{"w": "word", "n": "num", "t": "why"}[kind] for kind in kinds]
    head = element("tr", *(element("th", h, css=c) for h, c in zip(headings, css, strict=True)))
    body = [
        element("tr", *(element("td", v, css=c) for v, c in zip(row, css, strict=True)))
        for row in rows
    ]
    inside = element("table", element("thead", head), element("tbody", *body))
    return element("div", inside, css="scroll")


def generic_table(rows: Sequence[Mapping[str, Cell]]) -> Html:
    """Rows of a judgement as they are: a column for each key; reasons only where there is one."""
    if not rows:
        return element("p", "none", css="soft")
    keys = [k for k in columns(rows) if not k.endswith("why") or any(r.get(k) for r in rows)]
    words = {k for k in keys if any(isinstance(r.get(k), str) for r in rows)}
    kinds = "".join("n" if k not in words else "t" if k.endswith("why") else "w" for k in keys)
    cells = [[cell(k, row.get(k)) for k in keys] for row in rows]
    return table([heading(k) for k in keys], cells, kinds=kinds)


def definitions(pairs: Iterable[tuple[str, str]]) -> Html:
    """Names and what they are."""
    items = [Html(element("dt", name) + element("dd", value)) for name, value in pairs]
    return element("dl", *items)


def section(heading_: str, *inside: str) -> Html:
    return element("section", element("h2", heading_), *inside)


def bullets(items: Iterable[str]) -> Html:
    return element("ul", *(element("li", item) for item in items))


def picture(path: Path, *, alt: str) -> Html:
    """A PNG inside the page, so that the page is one file."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Html(f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>')


def page(title: str, *inside: str, style: str, made_from: str) -> str:
    """The whole document; ``made_from`` names the figures that it shows."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="lull {escape(made_from)}">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(text(i) for i in inside)
        + "\n</main>\n</body>\n</html>\n"
    )
