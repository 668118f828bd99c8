"""`python -m experiments.paper_audit`: what the published figures support under the gate."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.paper_audit.bursty import bursty_findings
from experiments.paper_audit.comparisons import comparisons
from experiments.paper_audit.document import to_html, to_markdown
from experiments.paper_audit.page import write_document
from experiments.paper_audit.steady import steady_findings
from experiments.paper_audit.tables import read_tables
from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.published import judge_published
from orchestrator.record_files import strict_json, write_atomic
from orchestrator.report.mirror import short_hash

HERE = Path(__file__).parent
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def audit(
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for paper_audit.html, .md and the figure")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object for machines")] = False,
    data: Annotated[Path, typer.Option(help="folder of the published tables")] = HERE / "data",
) -> None:
    """Put the published figures to this project's gate, and print one page.

    Example: python -m experiments.paper_audit --out audit
    """
    if out is not None:
        _make_folder(out)
    try:
        tables = read_tables(data)
        published = comparisons(
            tables, GateConfig.model_validate_json((HERE / "gate.json").read_bytes())
        )
        judgements = [judge_published(study) for study in published.studies]
        found = (*steady_findings(tables, published), *bursty_findings(tables, published))
    except ValueError as error:
        sys.stderr.write(f"paper_audit: error: {error}\n")
        raise typer.Exit(2) from error
    document = write_document(judgements, found, tables)
    figures = {
        "judgements": [asdict(j) for j in judgements],
        "findings": [asdict(f) for f in found],
        "sha256": dict(tables.sha256),
    }
    if out is not None:
        from experiments.paper_audit.plot import ALT, plot_exposure

        figure = plot_exposure(published.steady, out / "exposure.png")
        html = to_html(document, figure=figure, alt=ALT, made_from=_digest(figures))
        write_atomic(out / "paper_audit.html", html.encode())
        write_atomic(out / "paper_audit.md", to_markdown(document).encode())
    sys.stdout.write(
        strict_json(figures, where="figures", indent=2) + "\n" if as_json else to_markdown(document)
    )


def _digest(figures: dict[str, Any]) -> str:
    return f"figures-{short_hash(figures)}"


def _make_folder(out: Path) -> None:
    """Before the work, not after it: exit 2 where nothing can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        sys.stderr.write(
            f"paper_audit: error: --out {out}: {error.strerror}; give a folder's path\n"
        )
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app()
