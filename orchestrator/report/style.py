"""The look of report.html: readable on paper, on a phone and in the dark; nothing from outside."""

CSS = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #59636e; --paper: #fdfdfc;
  --card: #f3f4f2; --rule: #d9dcd8; --good: #00734f; --bad: #b13c00; --open: #7a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e3; --soft: #a3aab1; --paper: #16191c; --card: #20252a;
    --rule: #363c42; --good: #4cc79a; --bad: #ff9a66; --open: #e6bf4f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 3vw, 2.5rem) 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.3rem 0; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.7rem; padding-top: 0.8rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p, ul { max-width: 46rem; margin: 0.4rem 0 0.8rem; }
.soft { color: var(--soft); font-size: 0.92rem; }
.simulated { display: inline-block; border: 2px solid var(--bad); color: var(--bad);
  border-radius: 4px; padding: 0.1rem 0.6rem; font-weight: 600; margin: 0.3rem 0; }
.card { background: var(--card); border-left: 5px solid var(--open); border-radius: 4px;
  padding: 0.9rem 1.2rem; margin: 1rem 0; }
.card.PASS { border-color: var(--good); } .card.FAIL { border-color: var(--bad); }
.card p { margin: 0.3rem 0; max-width: 60rem; }
.verdict { font-size: 1.25rem; font-weight: 700; }
.met, .PASS .verdict { color: var(--good); } .not_met, .FAIL .verdict { color: var(--bad); }
.not_assessable, .absent, .INCONCLUSIVE .verdict { color: var(--open); }
.met, .not_met, .not_assessable, .absent { font-weight: 600; white-space: nowrap; }
.scroll { overflow-x: auto; margin: 0.5rem 0 1rem; }
table { border-collapse: collapse; font-size: 0.9rem; line-height: 1.4; min-width: 30rem; }
th, td { text-align: left; vertical-align: top; padding: 0.34rem 0.7rem 0.34rem 0;
  border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td.word { white-space: nowrap; }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; padding-left: 0.35rem; }
td.num { white-space: nowrap; }
td.why { min-width: 20rem; padding-left: 0.6rem; } th.why { padding-left: 0.6rem; }
td:last-child, th:last-child { padding-right: 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.25rem 1.2rem;
  font-size: 0.92rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; overflow-x: auto; }
img { min-width: 44rem; width: 100%; height: auto; background: #fff; border-radius: 4px; }
code, pre { font: 0.88em/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--card); padding: 0.7rem 1rem; border-radius: 4px; overflow-x: auto; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: 0.5rem }
  body { font-size: 15px } }
@media print { .scroll { overflow: visible } section { break-inside: avoid } }
"""
