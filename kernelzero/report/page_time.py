"""The section of the page that says where a step's time goes, and what the run cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kernelzero.report.words import duration, gpu_hours_text, missing, note, percent

_NAMES = {"generate": "generate", "judge": "wait for verdicts", "train": "train", "other": "other"}


def step_time(found: Mapping[str, Any], seconds: Mapping[str, Mapping[str, float]]) -> str:
    """One bar a role for its mean step, hidden judging below it, then time and GPU-hours of the whole run."""
    title = "<h2>Where a step's time goes</h2>"
    roles = found["per_role"]
    if not roles:
        return title + missing("steps that say their seconds") + _total(found)
    longest = max(role["step_s"] for role in roles.values()) or 1.0
    bars = "".join(_bar(name, role, longest) for name, role in roles.items())
    busy = any(role["judge_busy_s"] is not None for role in roles.values())
    thin = " The thin line below is all the time in which Keck was at work." if busy else ""
    about = note(
        "The mean step of each role. Judging overlaps generation: the bar shows only the wait for verdicts after the "
        f"last token.{thin}"
    )
    table = f"<details><summary>Seconds of all steps</summary>{_table(seconds)}</details>" if seconds else ""
    return f'{title}{about}<div class="card">{bars}</div>{_total(found)}{table}'


def _bar(name: str, role: Mapping[str, Any], longest: float) -> str:
    split = {part: value for part, value in role["split_s"].items() if value > 0}
    segments = "".join(
        f'<span class="seg t-{part}" style="width:{100 * value / longest:.2f}%" '
        f'title="{_NAMES[part]}: {duration(value)}"></span>'
        for part, value in split.items()
    )
    keys = "".join(
        f'<span><i class="key t-{part}"></i>{_NAMES[part]} {duration(value)}</span>' for part, value in split.items()
    )
    length = duration(role["step_s"])
    return (
        f'<div class="barline"><span class="barlabel">{name.capitalize()}</span>'
        f'<span class="stack">{segments}</span><span class="barcount wider">{length}</span></div>'
        f'{_busy_line(role, longest)}<div class="under"><div class="legend">{keys}</div>{_sentences(role)}</div>'
    )


def _busy_line(role: Mapping[str, Any], longest: float) -> str:
    """The judging as a line that ends where the wait for it ends."""
    busy, hidden, split = role["judge_busy_s"], role["judge_hidden_s"], role["split_s"]
    if not busy:
        return ""
    start = max(0.0, split["generate"] - hidden)
    end = min(split["generate"] + split["judge"], role["step_s"])
    style = f"margin-left:{100 * start / longest:.2f}%;width:{100 * max(end - start, 0) / longest:.2f}%"
    line = f'<span class="busytrack"><span class="busy" style="{style}" title="Keck: {duration(busy)}"></span></span>'
    return f'<div class="barline thin"><span class="barlabel"></span>{line}<span class="barcount wider"></span></div>'


def _sentences(role: Mapping[str, Any]) -> str:
    parts = []
    if role["judge_busy_s"] is not None:
        text = f"Keck was at work for {duration(role['judge_busy_s'])} of a step"
        hidden = f"{duration(role['judge_hidden_s'])} of it hidden behind generation"
        parts.append(f"{text}, {hidden}{_of_steps(role['judge_steps'], role)}.")
    else:
        parts.append("How much judging was hidden behind generation is not said.")
    if role["gpu_idle"] is not None:
        steps = _of_steps(role["gpu_idle_steps"], role)
        parts.append(f"<b>GPU idle {percent(role['gpu_idle'])}</b> of the time{steps}.")
    elif not any(role["gpus"]):
        parts.append("No GPU's idle share is known.")
    else:
        parts.append("The GPU's idle share is not said.")
    return note(" ".join(parts))


def _of_steps(count: int, role: Mapping[str, Any]) -> str:
    return "" if count == role["steps"] else f" (said by {count} of {role['steps']} steps)"


def _total(found: Mapping[str, Any]) -> str:
    if found["total_s"] is None:
        return ""
    said, steps = found["timed_steps"], found["steps"]
    of = "" if said == steps else f" of the {said} of {steps} steps that say their length"
    return f"<p><b>{duration(found['total_s'])}</b> of training steps{of}. {_gpu_hours(found['gpu_hours'])}</p>"


def _gpu_hours(hours: Mapping[str, Any]) -> str:
    if hours["total"] is None:
        return "GPU-hours are not known: nothing says how many GPUs the run held."
    if hours["total"] == 0:
        text = "<b>No GPU</b> was held"
    else:
        text = f"<b>{gpu_hours_text(hours['total'])} GPU-hours</b>: step seconds by GPUs held"
    counted = [_steps(hours["steps_counted"])] if hours["steps_counted"] else []
    counted += [f"the benchmark {label}" for label, known in hours["bench"].items() if known is not None]
    unsaid = [_steps(hours["steps_not_said"])] if hours["steps_not_said"] else []
    unsaid += [f"the benchmark {label}" for label, known in hours["bench"].items() if known is None]
    rest = f" Not counted, for the run does not say it: {_listed(unsaid)}." if unsaid else ""
    return f"{text}. Counted: {_listed(counted)}.{rest} Loading models and saving checkpoints are not in it."


def _steps(count: int) -> str:
    return f"{count} training step{'' if count == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _table(seconds: Mapping[str, Mapping[str, float]]) -> str:
    activities = list(dict.fromkeys(activity for spent in seconds.values() for activity in spent))
    head = "".join(f'<th class="n">{escape(activity)}</th>' for activity in activities)
    rows = "".join(
        f"<tr><td>{escape(role.capitalize())}</td>"
        + "".join(f'<td class="n">{duration(spent.get(activity))}</td>' for activity in activities)
        + f'<td class="n">{duration(sum(spent.values()))}</td></tr>'
        for role, spent in seconds.items()
    )
    return f'<div class="scroll"><table><tr><th></th>{head}<th class="n">all</th></tr>{rows}</table></div>'
