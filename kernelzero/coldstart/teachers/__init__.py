"""Teachers behind one protocol: the rulebook, and any model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from kernelzero.coldstart.teachers.base import Assignment, Lesson, Principle, Teacher, TeacherDown, principle_of

__all__ = ["Assignment", "Lesson", "Principle", "Teacher", "TeacherDown", "open_teacher", "principle_of"]


def open_teacher(
    spec: str,
    *,
    workers: int = 1,
    concurrency: int = 32,
    max_tokens: int = 16_384,
    temperature: float = 1.0,
    retries: int = 4,
    timeout_s: float = 1800.0,
) -> Teacher:
    """The teacher that a text names: "rulebook", or "http(s)://host/v1#model".

    Args:
        workers: processes of the rulebook.
        concurrency: requests side by side of an endpoint; the options after it are an endpoint's too.

    Raises:
        UsageError: there is no such teacher.
    """
    from kernelzero.errors import UsageError

    if spec == "rulebook":
        from kernelzero.coldstart.teachers.rulebook import RulebookTeacher

        return RulebookTeacher(workers)
    base_url, _, model = spec.partition("#")
    if not spec.startswith(("http://", "https://")):
        raise UsageError(f"no teacher {spec!r}: say rulebook, or an endpoint as http://host:8000/v1#model")
    if not model:
        raise UsageError(f"{spec}: say which model to ask for, as in {base_url}#model")
    from kernelzero.coldstart.teachers.endpoint import EndpointTeacher

    return EndpointTeacher(
        base_url, model, concurrency=concurrency, max_tokens=max_tokens, temperature=temperature, retries=retries,
        timeout_s=timeout_s,
    )  # fmt: skip
