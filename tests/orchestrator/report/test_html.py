"""report.html: one whole page, nothing fetched, nothing injected, nothing left unsaid."""

import base64
import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.calibration.verdict import VerdictKind
from orchestrator.report.html import shows, write_report
from orchestrator.report.tables import arms_table

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Text, addresses and balance of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.addresses: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def written(made: Any, folder: Path) -> tuple[Path, Page]:
    """The report, around stand-ins for the two plots."""
    folder.mkdir(exist_ok=True)
    for name in ("timeline.png", "envelope.png"):
        (folder / name).write_bytes(b"\x89PNG " + name.encode())
    path = write_report(folder, made.study, made.records, made.metrics, made.judgement)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return path, page


def test_the_page_holds_its_pictures_and_fetches_nothing(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    path, page = written(make_made(), tmp_path)
    prefix = "data:image/png;base64,"
    images = [base64.b64decode(a.removeprefix(prefix)) for a in page.addresses]
    assert all(a.startswith(prefix) for a in page.addresses)
    assert images == [(tmp_path / n).read_bytes() for n in ("envelope.png", "timeline.png")]
    assert not page.tags & {"script", "link", "iframe"}
    assert not re.search(r"url\(|@import|https?://", path.read_text(encoding="utf-8"))


def test_what_a_study_says_is_text_and_never_markup(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    path, page = written(make_made(), tmp_path)
    assert "Does <wa_ewma> & friends place merges well?" in page.text
    assert "mock engine <not a real server>" in page.text
    assert "<host>" in page.text  # from the provenance
    assert "wa_ewma" not in page.tags
    assert "&lt;wa_ewma&gt; &amp; friends" in path.read_text(encoding="utf-8")


def test_verdict_conditions_and_figures_are_there(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made()
    _, page = written(made, tmp_path)
    verdict = made.judgement.verdicts[0]
    for text in ("wa_ewma: INCONCLUSIVE (no claim)", verdict.reason, verdict.needed):
        assert text in page.text
    for condition in verdict.conditions:
        assert condition.name in page.text
        assert condition.status.value.replace("_", " ") in page.text
        assert condition.threshold in page.text
    for m in made.metrics:
        assert f"{100 * m.violation_rate:.1f} %" in page.text
    for text in ("SIMULATED: live, engine=mock", "0.32.0", "c0ffee", "lull gate", "5.40 \u2192"):
        assert text in page.text
    assert "-3.0 percentage points" in page.text


def test_page_and_terminal_say_merges_per_run_and_say_so(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made()
    path, _ = written(made, tmp_path)
    first = path.read_text(encoding="utf-8").split("<table", 2)[1]
    row = next(r for r in first.split("<tr") if ">wa_ewma<" in r)
    own = [m.merge_count for m in made.metrics if m.arm == "wa_ewma"]
    assert own == [3, 3]
    assert "merges per run</th>" in first
    assert re.findall(r">([^<>]*)</td>", row)[-1] == "3"
    out = io.StringIO()
    Console(width=80, color_system=None, file=out).print(arms_table(made.metrics))
    assert "merges per run: least-largest" in " ".join(out.getvalue().split())
    assert next(li for li in out.getvalue().splitlines() if " wa_ewma " in li).split()[-1] == "3"


def test_a_pass_shows_its_sentence_and_a_real_server_is_not_called_simulated(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made().on_vllm()
    passed = replace(
        made.judgement.verdicts[0],
        verdict=VerdictKind.PASS,
        tier=2,
        needed="",
        sentence="wa_ewma reduces SLO violations in this regime",
    )
    made = replace(made, judgement=replace(made.judgement, verdicts=(passed,)))
    _, page = written(made, tmp_path)
    assert "wa_ewma: PASS" in page.text
    assert passed.sentence in page.text
    assert "no claim" not in page.text
    assert "SIMULATED" not in page.text


def test_a_broken_run_is_named_and_kept_out_of_its_arm(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    _, page = written(make_made(broken={("wa_ewma", 2): "partial"}), tmp_path)
    assert "wa_ewma, seed 2: partial: island 1 was lost" in page.text
    assert "1 of 2" in page.text


def test_requests_that_do_not_add_up_are_said_so(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made()
    _, page = written(made, tmp_path / "whole")
    assert " NO " not in page.text
    short = replace(made.records[0], requests=made.records[0].requests.slice(0, 100))
    made = replace(made, records=(short, *made.records[1:]))
    _, page = written(made, tmp_path / "short")
    assert page.text.count(" NO ") == 1


def test_a_study_without_runs_or_verdicts_has_a_page_too(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = replace(make_made(judge=[]), records=(), metrics=())
    made = replace(made, judgement=replace(made.judgement, effects=(), arms=()))
    _, page = written(made, tmp_path)
    assert "judges no policy" in page.text
    assert "No run merged." in page.text


def test_plots_that_are_not_there_yet_are_drawn(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made(seeds=[1], arms=[{"kind": "policy", "policy": "wa_ewma"}])
    write_report(tmp_path, made.study, made.records, made.metrics, made.judgement)
    for name in ("timeline.png", "envelope.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_report_knows_which_figures_it_shows(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made()
    path, _ = written(made, tmp_path)
    assert shows(path, made.metrics, made.judgement)
    assert not shows(path, made.metrics[1:], made.judgement)
    other = replace(made.judgement, gate_hash="0" * 12)
    assert not shows(path, made.metrics, other)
