"""Any model behind an OpenAI-compatible endpoint as a teacher.

The client underneath tries again on rate limits, server errors and time-outs; what is not JSON is tried again here.
The reasoning of a lesson is the prose of the answer before its code, or where there is none what the model thought.
Tokens are the server's own count. Not counted: what a server spent on answers that never arrived.
"""

from __future__ import annotations

import time
from typing import Any

from kernelzero.coder.extract import extract_kernel
from kernelzero.coldstart.prose import prose_before, thoughts_in
from kernelzero.coldstart.teachers.base import Assignment, Lesson, TeacherDown
from kernelzero.coldstart.teachers.prompt import teacher_prompt
from kernelzero.errors import InfrastructureError
from kernelzero.policy.endpoint import EndpointSampler
from kernelzero.records import Finish, Sampling

_CHARS_PER_TOKEN = 2
"""Fewer than any tokenizer in use needs for English and code, so that a budget is never overrun."""


class EndpointTeacher(EndpointSampler):
    """Asks `model` behind `base_url` for one lesson a request."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        concurrency: int = 32,
        max_tokens: int = 16_384,
        temperature: float = 1.0,
        retries: int = 4,
        timeout_s: float = 1800.0,
        pause_s: float = 1.0,
    ) -> None:
        super().__init__(base_url, model, concurrency=concurrency, retries=retries, timeout_s=timeout_s)
        self.concurrency = concurrency
        self._max_tokens, self._temperature, self._retries, self._pause_s = max_tokens, temperature, retries, pause_s

    def teach(self, assignment: Assignment) -> Lesson:
        """One lesson, of one answer."""
        started = time.perf_counter()
        seed = (assignment.seed * 1_000_003 + assignment.sample) % (1 << 31)
        sampling = Sampling(self._temperature, 1.0, self._max_tokens, seed)
        arguments = self._arguments(teacher_prompt(assignment), 1, sampling, 0)
        fields = _lesson(self._asked(arguments))
        return Lesson(**fields, principle=assignment.principle.value, seconds=time.perf_counter() - started)

    def most_tokens(self, assignment: Assignment) -> int:
        """The longest answer, and an upper bound on the prompt."""
        characters = sum(len(message["content"]) for message in teacher_prompt(assignment).messages)
        return self._max_tokens + characters // _CHARS_PER_TOKEN

    def _asked(self, arguments: dict[str, Any]) -> Any:
        """The server's answer, or None where it refuses this request for good."""
        import openai

        failure: Exception | None = None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                answer = self._client.chat.completions.create(**arguments)
                if getattr(answer, "choices", None):
                    return answer
                failure = ValueError("an answer without any choice")
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                raise InfrastructureError(self._failure(error)) from error
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                return error
            except openai.OpenAIError as error:
                # The client has tried again already.
                raise TeacherDown(self._failure(error)) from error
            except ValueError as error:
                failure = error
        raise TeacherDown(self._failure(failure or ValueError("no answer"))) from failure


def _lesson(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Exception):
        return {"refusal": "bad_request", "detail": " ".join(str(answer).split())[:300]}
    choice, usage = answer.choices[0], getattr(answer, "usage", None)
    tokens = {
        "prompt_tokens": getattr(usage, "prompt_tokens", 0) or 0,
        "completion_tokens": getattr(usage, "completion_tokens", 0) or 0,
    }
    text = getattr(choice.message, "content", None) or ""
    finish = Finish.LENGTH if choice.finish_reason == "length" else Finish.STOP
    found = extract_kernel(text, finish)
    if found.code is None:
        name = "truncated" if finish is Finish.LENGTH else "no_code"
        return {"refusal": name, "detail": found.reason, "text": text, **tokens}
    beside = getattr(choice.message, "reasoning_content", None) or getattr(choice.message, "reasoning", None)
    why = prose_before(text, found.code) or str(beside or thoughts_in(text)).strip()
    return {"reasoning": why, "code": found.code, **tokens}
