"""The sections of the page that show modules: how the same API sets evolve, and the gallery."""

from __future__ import annotations

from html import escape

from kernelzero.report.gallery import Evolution, Exhibit, Stage, evolutions, exhibits
from kernelzero.report.graph import draw_graph
from kernelzero.report.highlight import highlight
from kernelzero.report.reading import RunFolder
from kernelzero.report.words import TIMES, missing, note, percent

_MOST_STAGES = 12
"""Rounds drawn of one API set; the first and the last are always among them."""


def evolution(run: RunFolder) -> str:
    """The modules made of the same API sets, round by round."""
    title = "<h2>The same APIs, round by round</h2>"
    if not run.pool and not run.proposals:
        return title + missing("modules")
    found = evolutions(run)
    if not found.shown:
        return title + note("No API set and no pair of APIs occurs in valid modules of two rounds.")
    what = "API sets that the Proposer was given in most rounds" if found.same_set else (
        "pairs of APIs that occur in most rounds, for no whole API set occurs in two rounds"
    )  # fmt: skip
    intro = (
        f"<p>Modules of the {len(found.shown)} {what}; of equally frequent ones those whose solve rate changes most. "
        "Each round shows the module nearest to its mean solve rate.</p>"
    )
    return title + intro + "".join(map(_evolution_card, found.shown))


def _evolution_card(one: Evolution) -> str:
    chips = "".join(f'<span class="chip">{escape(api)}</span>' for api in one.apis)
    stages = one.stages
    if len(stages) > _MOST_STAGES:
        last = len(stages) - 1
        stages = tuple(stages[round(i * last / (_MOST_STAGES - 1))] for i in range(_MOST_STAGES))
    left_out = len(one.stages) - len(stages)
    rest = note(f"{left_out} rounds in between are not drawn.") if left_out else ""
    drawn = "".join(_stage(stage, one.apis) for stage in stages)
    return f'<div class="card exhibit"><div class="chips">{chips}</div>{rest}<div class="stages">{drawn}</div></div>'


def _stage(stage: Stage, apis: tuple[str, ...]) -> str:
    graph = draw_graph(stage.graph) if stage.graph else note("Its graph cannot be read.")
    rate = "not rated" if stage.solve_rate is None else f"solved {percent(stage.solve_rate)}"
    kernels = f"{stage.kernels} kernel{'' if stage.kernels == 1 else 's'}, {stage.correct} correct"
    mean = ""
    if stage.modules > 1:
        mean = f"<br>one of {stage.modules} modules, mean {percent(stage.mean_solve_rate)}"
    others = [api for api in stage.task.apis if api not in apis]
    beside = f"<br>with {escape(', '.join(others))}" if others else ""
    text = f"<b>{rate}</b><br>{kernels}{mean}{beside}"
    return f'<div class="stage"><h3>Round {stage.round}</h3><div class="note">{text}</div>{graph}</div>'


def gallery(run: RunFolder, basis: str) -> str:
    """Modules near the frontier beside the fastest correct kernel of each."""
    title = "<h2>Gallery</h2>"
    shown = exhibits(run)
    if not shown:
        return title + missing("rated modules to show")
    intro = (
        f"<p>{len(shown)} of the proposed modules, near the frontier and unlike one another, each with the fastest "
        "correct kernel that the Coder wrote for it.</p>"
    )
    return title + intro + "".join(_card(exhibit, basis) for exhibit in shown)


def _card(exhibit: Exhibit, basis: str) -> str:
    chips = "".join(f'<span class="chip">{escape(api)}</span>' for api in exhibit.task.apis)
    where = f"round {exhibit.round}, " if exhibit.round is not None else ""
    graph = draw_graph(exhibit.graph) if exhibit.graph else '<p class="note">Its graph cannot be read.</p>'
    module = f"<h3>Module</h3><pre>{highlight(exhibit.task.source.strip())}</pre>"
    return (
        f'<div class="card exhibit"><div class="chips">{chips}</div>'
        f'<div class="note">{where}solved {100 * exhibit.solve_rate:.0f} % of the time</div>'
        f'<div class="parts"><div>{graph}</div><div>{module}</div>'
        f"<div>{_kernel(exhibit, basis)}</div></div></div>"
    )


def _kernel(exhibit: Exhibit, basis: str) -> str:
    if exhibit.best is None or exhibit.best.candidate is None:
        tried = f"in {exhibit.tried} attempts" if exhibit.tried else "(no attempts are recorded)"
        return f'<h3>Kernel</h3><p class="note">None was correct {tried}.</p>'
    timing = exhibit.best.verdict.timing
    speed = f", {timing.basis.value} {timing.speedup:.2f}{TIMES} against {escape(timing.baseline)}" if timing else ""
    backend = exhibit.best.candidate.backend.value.capitalize().replace("Cuda", "CUDA")
    return f"<h3>{backend} kernel{speed}</h3><pre>{highlight(exhibit.best.candidate.source.strip())}</pre>"
