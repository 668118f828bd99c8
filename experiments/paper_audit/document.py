"""A page as blocks, written once as Markdown and once as HTML, so that both say the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.report import markup
from orchestrator.report.style import CSS


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``kinds``: one letter a column, w words, n number, t text that needs room."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kinds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    blocks: tuple["str | tuple[str, ...] | Table", ...]  # a paragraph, bullets, a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]


def to_markdown(document: Document) -> str:
    parts = [f"# {document.title}", *document.lead]
    for section in document.sections:
        parts.append(f"## {section.title}")
        parts += [_block(b) for b in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: "str | tuple[str, ...] | Table") -> str:
    match block:
        case str():
            return block
        case Table(headings=headings, rows=rows, kinds=kinds):
            rule = ["--:" if kind == "n" else "---" for kind in kinds]
            return "\n".join(_line(cells) for cells in (headings, rule, *rows))
        case _:
            return "\n".join(f"- {item}" for item in block)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(c.replace('|', '/') for c in cells)} |"


def to_html(document: Document, *, figure: Path, alt: str, made_from: str) -> str:
    """One self-contained page; the figure stands before the sections, inside the page."""
    lead = [markup.element("p", text) for text in document.lead]
    sections = [
        markup.section(s.title, *(_html_block(block) for block in s.blocks))
        for s in document.sections
    ]
    return markup.page(
        document.title,
        markup.element("h1", document.title),
        *lead,
        markup.picture(figure, alt=alt),
        *sections,
        style=CSS,
        made_from=made_from,
    )


def _html_block(block: "str | tuple[str, ...] | Table") -> markup.Html:
    match block:
        case str():
            return markup.element("p", block)
        case Table(headings=headings, rows=rows, kinds=kinds):
            return markup.table(headings, rows, kinds=kinds)
        case _:
            return markup.bullets(block)
