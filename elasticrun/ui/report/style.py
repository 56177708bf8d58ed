"""How the report looks: light and dark as the reader's system has it, and light on paper."""

from __future__ import annotations

#: The colour of each activity, in light and in dark; work stands out, losses are told apart.
COLOURS = {
    "productive": ("#2a9d6a", "#3fbf85"),
    "redone": ("#c8553d", "#e2735c"),
    "slow": ("#b07aa1", "#c69bba"),
    "checkpoint stall": ("#e0a100", "#e8b93c"),
    "start": ("#7c8fa6", "#8fa3ba"),
    "import": ("#4f83c4", "#6d9eda"),
    "rendezvous": ("#2f5d8c", "#4d7fb3"),
    "restore": ("#5fb3bf", "#74c7d2"),
    "waiting for nodes": ("#8a6d3b", "#b08f55"),
    "stopped": ("#9aa0a6", "#7d848c"),
    "hung": ("#6a3d9a", "#9a6fcb"),
}


def slug(activity: str) -> str:
    """The name of an activity's class."""
    return f"a-{activity.replace(' ', '-')}" if activity in COLOURS else "a-other"


def _variables(which: int) -> str:
    return "".join(f"--{slug(name)}:{pair[which]};" for name, pair in COLOURS.items()) + "--a-other:#888;"


_LIGHT = (
    "--page:#fff;--ink:#1c2126;--soft:#5b6570;--line:#dde2e7;--card:#f6f8fa;--good:#1f7a50;--bad:#b3402a;"
    "--blue:#2b6cb0;--warn:#946200;" + _variables(0)
)
_DARK = (
    "--page:#14181c;--ink:#e6e9ec;--soft:#9aa5b1;--line:#2d353d;--card:#1c2228;--good:#55c894;--bad:#f0876f;"
    "--blue:#79aee8;--warn:#e2b14a;" + _variables(1)
)
_FILLS = "".join(
    f".{slug(name)}{{fill:var(--{slug(name)});background:var(--{slug(name)})}}" for name in (*COLOURS, "")
)
SHEET = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{color-scheme:light;{_LIGHT}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:24px 20px 48px;background:var(--page);color:var(--ink);
 font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:36px 0 10px}
h3{font-size:1rem;margin:20px 0 6px}
p{margin:6px 0}.soft{color:var(--soft)}.small{font-size:.85rem}
nav{margin:10px 0;font-size:.9rem;display:flex;flex-wrap:wrap;gap:2px 14px}
a{color:var(--blue)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.tile b{display:block;font-size:1.4rem;line-height:1.25;font-weight:650;white-space:nowrap}
.tile span{color:var(--soft);font-size:.85rem}
.note,.advice{border-left:4px solid var(--warn);background:var(--card);padding:8px 12px;margin:8px 0;
 border-radius:4px}.advice{border-color:var(--blue)}
.advice b{font-weight:600}.advice p{margin:2px 0}
.scroll{overflow-x:auto;margin:6px 0}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:5px 16px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:550;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.wide{min-width:260px;overflow-wrap:anywhere}td.short{white-space:nowrap}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px;overflow-x:auto;
 font-size:.8rem;line-height:1.4;white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:4px 0}summary{cursor:pointer;color:var(--blue)}
svg{display:block;width:100%;min-width:640px;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.axis{stroke:var(--line);stroke-width:1}.strong{fill:var(--ink)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;color:var(--soft);margin:4px 0}
.key i,.keyed i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;
 vertical-align:-1px}
.goodput{stroke:var(--a-productive);fill:none;stroke-width:2.2}.ettr{stroke:var(--blue);fill:none;
 stroke-width:2.2;stroke-dasharray:6 3}.since{fill:var(--a-productive);opacity:.16}
i.goodput{background:var(--a-productive)}i.ettr{background:var(--blue)}
.round{fill:var(--a-productive)}.round.odd{opacity:.72}.recovery{fill:var(--bad)}i.round{background:var(--a-productive)}
i.recovery{background:var(--bad)}.mark{stroke:var(--bad);stroke-width:1.2}
.bar{fill:var(--blue)}.faint{fill:var(--blue);opacity:.35}
svg .on{fill:#fff;font-weight:600}i.bar{background:var(--blue)}.change{fill:var(--a-waiting-for-nodes)}
i.change{background:var(--a-waiting-for-nodes)}.loss{fill:var(--a-hung)}i.loss{background:var(--a-hung)}
.save{fill:var(--a-checkpoint-stall)}i.save{background:var(--a-checkpoint-stall)}
.better{color:var(--good)}.worse{color:var(--bad)}
footer{margin-top:40px;color:var(--soft);font-size:.85rem}
"""
    + _FILLS
    + """
@media (max-width:600px){body{padding:14px 12px 32px}
 .tiles{grid-template-columns:1fr 1fr}h1{font-size:1.25rem}.tile b{font-size:1.15rem}}
@media print{body{max-width:none;padding:0;font-size:10.5pt}nav{display:none}svg{min-width:0}
 .scroll{overflow:visible}h2{break-after:avoid}.tile,.advice,.note,tr,svg,pre{break-inside:avoid}
 details::details-content{content-visibility:visible;display:block}
 *{print-color-adjust:exact;-webkit-print-color-adjust:exact}@page{margin:14mm}}
"""
)
