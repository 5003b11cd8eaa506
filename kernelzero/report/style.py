"""The page's style: one palette for light and one for dark, everything else derived from them."""

from __future__ import annotations

STYLE = """
:root{--bg:#fbfbfa;--card:#fff;--ink:#1d2129;--soft:#5c6470;--line:#dfe2e6;--band:#f1f3f5;--accent:#1f6feb;
--proposer:#8250df;--coder:#0f7d8a;--before:#8a919c;--good:#1a7f37;--bad:#c4432b;--code:#f6f7f8;
--kw:#a3259c;--str:#0b6b3a;--num:#0550ae;--com:#6e7781;--name:#953800;
--k0:#2da44e;--k1:#e08b2c;--k2:#cf3f36;--k3:#e57aa5;--k4:#8250df;--k5:#8c5a2b;--k6:#8a919c;--k7:#c3c8cf;--k8:#4b6584}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1c2026;--ink:#e4e7eb;--soft:#9aa3ae;--line:#333a43;
--band:#232931;--accent:#6cb0ff;--proposer:#b794f6;--coder:#45c4d1;--before:#8a929d;--good:#56d364;--bad:#ff8a73;
--code:#15191e;--kw:#e39cf0;--str:#7fd89f;--num:#8ec7ff;--com:#8b949e;--name:#ffb37a;
--k0:#3fb950;--k1:#e8a04c;--k2:#e5534b;--k3:#f094bb;--k4:#a37df0;--k5:#b98556;--k6:#7d8590;--k7:#59616b;--k8:#7f9bbd}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:1.05rem;margin:0 0 6px;color:var(--soft);font-weight:600;letter-spacing:.02em}
h2{font-size:1.25rem;margin:44px 0 6px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:0 0 4px}
p{margin:6px 0 12px;max-width:75ch}
.headline{font-size:1.5rem;line-height:1.35;font-weight:650;margin:0 0 14px;max-width:58ch;text-wrap:pretty}
.headline.better{border-left:5px solid var(--good);padding-left:14px}
.headline.worse{border-left:5px solid var(--bad);padding-left:14px}
.headline.within_noise,.headline.unavailable{border-left:5px solid var(--before);padding-left:14px}
.note,.soft{color:var(--soft);font-size:.9rem}
.chips{display:flex;flex-wrap:wrap;gap:6px;margin:0 0 6px}
.chip{background:var(--band);border:1px solid var(--line);border-radius:12px;padding:1px 10px;font-size:.82rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:8px 14px 8px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:.84rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td .range{display:block;color:var(--soft);font-size:.82rem;white-space:nowrap}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;margin-top:12px}
.grid3{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,290px),1fr));gap:16px;margin-top:12px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;min-width:0}
svg{display:block;width:100%;height:auto}
svg.histogram{max-width:290px;margin:0 auto}
svg text{font-family:inherit;fill:var(--ink)}
.tick{font-size:11.5px;fill:var(--soft)!important}.title{font-size:13px;font-weight:600}
.middle{text-anchor:middle}.end{text-anchor:end}
.grid,.axis{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft)}
.band{fill:none}.band.odd{fill:var(--band)}
.mark{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:4 4}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.line.Proposer{stroke:var(--proposer)}.line.Coder{stroke:var(--coder)}
.dot{fill-opacity:.45}.dot.Proposer{fill:var(--proposer)}.dot.Coder{fill:var(--coder)}
.bar{fill:var(--proposer)}
svg.interval{width:140px}
.whisker{stroke-width:3;stroke-linecap:round;stroke-opacity:.55}
.whisker.before{stroke:var(--before)}.whisker.after{stroke:var(--accent)}
.point.before{fill:var(--before)}.point.after{fill:var(--accent)}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 0;vertical-align:-1px}
.key.before{background:var(--before);border-radius:6px}.key.after{background:var(--accent);border-radius:6px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;color:var(--soft);margin:8px 0}
.barline{display:flex;align-items:center;gap:10px;margin:7px 0;font-size:.88rem}
.barlabel{flex:0 0 8em;overflow-wrap:anywhere}
.barcount{flex:0 0 3.5em;text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}
.stack{flex:1;display:flex;height:18px;border-radius:4px;overflow:hidden;background:var(--band)}
.seg{display:block;height:100%}
.k-correct{background:var(--k0)}.k-incorrect{background:var(--k1)}.k-compile_error{background:var(--k2)}
.k-runtime_error{background:var(--k3)}.k-rejected{background:var(--k4)}.k-timeout{background:var(--k5)}
.k-no_code{background:var(--k6)}.k-truncated,.k-missing{background:var(--k7)}
.k-unsupported,.k-infra_error{background:var(--k8)}.k-plain{background:var(--proposer)}
.t-generate{background:var(--k4)}.t-judge{background:var(--k1)}.t-train{background:var(--k0)}.t-other{background:var(--k7)}
.barcount.wider{flex-basis:6em}.barline.thin{margin:-4px 0 0}.busytrack{flex:1;height:4px}
.busy{display:block;height:4px;border-radius:2px;background:var(--k1)}
.under{margin:0 0 16px calc(8em + 10px)}.under .legend{margin:4px 0}.under .note{margin:2px 0}
.whisker.front{stroke:var(--accent)}.whisker.behind{stroke:var(--before)}svg.pareto .whisker{stroke-width:1.6}
.point.front{fill:var(--accent)}.point.behind{fill:var(--card);stroke:var(--before);stroke-width:2}
polyline.front{fill:none;stroke:var(--accent);stroke-width:1.4;stroke-dasharray:5 4}
.who{font-size:12px}
.box{fill:var(--coder);fill-opacity:.35}.median{stroke:var(--coder);stroke-width:2.6}
.beside{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1.35fr);gap:16px;margin-top:12px}
.stages{display:flex;gap:18px;overflow-x:auto;align-items:flex-start}.stage{flex:1 0 170px;min-width:0;max-width:320px}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--code);border:1px solid var(--line);border-radius:8px;padding:12px;margin:6px 0 0;overflow:auto;
max-height:340px;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;tab-size:4}
.kw{color:var(--kw)}.str{color:var(--str)}.num{color:var(--num)}.com{color:var(--com);font-style:italic}
.dec,.name{color:var(--name)}
.exhibit{margin-top:16px}
.exhibit .parts{display:grid;grid-template-columns:minmax(0,230px) minmax(0,1fr) minmax(0,1.25fr);gap:16px}
.exhibit .parts>div{min-width:0}
.graph{margin:6px auto 0}
.graph .label{font-size:12.5px;text-anchor:middle}.graph .detail{font-size:10.5px;text-anchor:middle;fill:var(--soft)}
.edge{fill:none;stroke:var(--soft);stroke-width:1.3}
.node{fill:var(--card);stroke:var(--coder);stroke-width:1.5}
.node.input,.node.output{fill:var(--band);stroke:var(--soft)}.node.parameter{stroke:var(--soft);stroke-dasharray:3 3}
details{margin:14px 0}summary{cursor:pointer;color:var(--accent)}
footer{margin-top:48px;color:var(--soft);font-size:.85rem;border-top:1px solid var(--line);padding-top:12px}
@media(max-width:860px){.exhibit .parts,.beside{grid-template-columns:minmax(0,1fr)}}
@media(max-width:620px){main{padding:18px 14px 40px}.headline{font-size:1.22rem}.wide{display:none!important}
th,td{padding-right:9px}table{font-size:.88rem}.barlabel{flex-basis:6.9em}.barcount{flex-basis:2.6em}.under{margin-left:0}
.metrics tr{display:grid;grid-template-columns:1fr 1fr;border-bottom:1px solid var(--line);padding:8px 0}
.metrics tr:first-child{display:none}.metrics td{border:0;padding:2px 0}.metrics td.n{text-align:left}
.metrics td:first-child,.metrics td:last-child{grid-column:1/-1}
.metrics td[data-l]::before{content:attr(data-l) " ";color:var(--soft)}}
@media print{pre{max-height:none}}
"""
