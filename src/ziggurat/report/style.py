"""The report's style sheet: one column, aligned numbers, colours for light and dark mode."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d1f23; --soft: #646a73; --paper: #fdfdfb; --rule: #e2e2dc; --raised: #f5f5f0;
  --first: #1f5fa8; --second: #b3541e; --quiet: #9aa0a8; --good: #24703c;
  --third: #2f7d4f; --fourth: #7a4fa3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e5e1; --soft: #9b9fa6; --paper: #16181b; --rule: #2d3035;
  --raised: #1e2125; --first: #7db3ee; --second: #e89a66; --quiet: #6d737b; --good: #7cc893;
  --third: #7cc893; --fourth: #bfa0e6; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; font-weight: 600; letter-spacing: -0.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 3rem 0 0.75rem; padding-top: 0.75rem; border-top: 1px solid var(--rule);
  font-weight: 600; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; font-weight: 600; } h2 + h3 { margin-top: 0; }
h4 { font-size: 0.95rem; margin: 0 0 0.35rem; font-weight: 600; }
p { margin: 0.4rem 0 0.8rem; max-width: 44rem; }
.soft, figcaption { color: var(--soft); font-size: 0.875rem; }
nav { margin-top: 1rem; font-size: 0.875rem; }
nav a { color: var(--first); text-decoration: none; margin-right: 1rem; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1rem 1.5rem;
  margin: 1.75rem 0 1rem; } h3 + .headline { margin-top: 0.75rem; }
.headline div { border-top: 2px solid var(--ink); padding-top: 0.4rem; }
.headline dt { color: var(--soft); font-size: 0.875rem; }
.headline dd { margin: 0; font-size: 1.75rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.25; }
.headline dd small { display: block; font-size: 0.8rem; font-weight: 400; color: var(--soft); line-height: 1.35; }
dl { margin: 0; }
.note { border-left: 3px solid var(--second); padding: 0.1rem 0 0.1rem 0.8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(18rem, 100%), 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0 0 0.5rem; min-width: 0; max-width: 34rem; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: 0.3rem; }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis, svg .tick { stroke: var(--quiet); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .line.reference { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 3 3; }
svg .best { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg .line.first { stroke: var(--first); } svg .line.second { stroke: var(--second); }
svg .line.quiet { stroke: var(--quiet); }
svg .line.third { stroke: var(--third); } svg .line.fourth { stroke: var(--fourth); }
svg .line.bar { stroke-width: 1.2; }
svg .area { stroke: none; opacity: 0.16; }
svg .area.first, svg .dot.first { fill: var(--first); } svg .dot.second { fill: var(--second); }
svg .area.quiet, svg .dot.quiet { fill: var(--quiet); }
svg .area.second { fill: var(--second); } svg .area.third, svg .dot.third { fill: var(--third); }
svg .area.fourth, svg .dot.fourth { fill: var(--fourth); }
svg .part { stroke: var(--paper); stroke-width: 0.75; } svg text.on { fill: var(--paper); }
svg.spark { width: 72px; height: 24px; vertical-align: middle; }
svg.spark .line { stroke-width: 1.4; } svg.spark .reference { stroke-width: 0.8; }
.legend { font-size: 0.875rem; color: var(--soft); margin: 0 0 0.75rem; }
.swatch { display: inline-block; width: 1.1em; height: 0; border-top: 3px solid; margin: 0 0.4em 0 0;
  vertical-align: 0.28em; }
.swatch.first { border-color: var(--first); } .swatch.second { border-color: var(--second); }
.swatch.third { border-color: var(--third); } .swatch.fourth { border-color: var(--fourth); }
.swatch.quiet { border-color: var(--quiet); } .legend .swatch:not(:first-child) { margin-left: 1em; }
.scroll { overflow-x: auto; margin: 0.5rem 0 0.75rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.32rem 0.9rem 0.32rem 0; text-align: left; vertical-align: middle;
  border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; white-space: nowrap; vertical-align: bottom; }
td.number, th.number { text-align: right; padding: 0.32rem 0 0.32rem 1.1rem; white-space: nowrap; }
td.number:last-child, th.number:last-child { padding-right: 0.2rem; }
.tight table { font-size: 0.84rem; } .tight td.number, .tight th.number { padding-left: 0.7rem; }
.won { font-weight: 650; color: var(--good); } .ours { font-weight: 600; }
td .wrap { display: inline-block; min-width: 10rem; max-width: 22rem; overflow-wrap: anywhere; }
.bar { display: inline-block; width: 4rem; height: 0.5rem; background: var(--rule); margin-right: 0.6rem; }
.share { white-space: nowrap; }
.bar span { display: block; height: 100%; background: var(--first); }
details { margin: 0.5rem 0; } summary { cursor: pointer; color: var(--first); }
pre { overflow-x: auto; background: var(--raised); padding: 0.9rem 1rem; border-radius: 4px; font-size: 0.82rem;
  line-height: 1.45; font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { margin-top: 3rem; color: var(--soft); font-size: 0.85rem; }
@media (max-width: 30rem) { table { font-size: 0.82rem; } th, td { padding-right: 0.6rem; }
  td.number, th.number { padding-left: 0.65rem; } }
@media print { body { max-width: none; } nav { display: none; } section { break-inside: avoid; } }
"""
