"""Words and number formats that the sections of the page share."""

from __future__ import annotations

MINUS, TIMES, DASH = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def missing(what: str) -> str:
    """The note in the place of a section without data."""
    return f'<p class="note">This run folder has no {what} yet.</p>'


def note(text: str) -> str:
    """A line of small print; `text` is HTML."""
    return f'<p class="note">{text}</p>'


def times(value: float | None) -> str:
    """A ratio."""
    return DASH if value is None else f"{value:.2f}{TIMES}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share between 0 and 1."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """A time for people."""
    if seconds is None:
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def gpu_hours_text(hours: float | None) -> str:
    """GPU-hours for people; small ones keep two digits that count."""
    if hours is None:
        return DASH
    return f"{hours:.2f}" if hours >= 0.1 or hours == 0 else f"{hours:.2g}"
