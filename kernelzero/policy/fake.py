"""A sampler without a model: scripted answers, for tests and for trying out everything around the models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from kernelzero.policy.base import Drawn, Progress, Style, tell_group
from kernelzero.records import Completion, Finish, Prompt, Sampling

Answers = Callable[[Prompt, int], str] | Mapping[str, str | Sequence[str]] | Sequence[str]
"""A function of (prompt, number of the sample), answers by the text of the last message, or the same for every prompt.

Sample i of a sequence is its item i, from the start again when it is used up.
"""


class FakeSampler:
    """Gives scripted answers. A token is a word with the white space before it; longer answers are cut off."""

    def __init__(self, answers: Answers, *, name: str = "fake", style: Style = "compact") -> None:
        self.name = name
        self.style: Style = style
        self.closed = False
        self._answers = answers

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Progress | None = None,
        drawn: Drawn | None = None,
    ) -> list[list[Completion]]:
        """`n` scripted completions of every prompt. Raises KeyError for a prompt without an answer."""
        groups = []
        for done, prompt in enumerate(prompts, 1):
            groups.append([_cut(self._answer(prompt, i), sampling.max_tokens) for i in range(n)])
            tell_group(drawn, done - 1, groups[-1])
            if progress:
                progress(done * n, len(prompts) * n)
        return groups

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _answer(self, prompt: Prompt, index: int) -> str:
        if callable(self._answers):
            return self._answers(prompt, index)
        scripted = self._answers
        if isinstance(scripted, Mapping):
            scripted = scripted[prompt.messages[-1]["content"]]
        return scripted if isinstance(scripted, str) else scripted[index % len(scripted)]


def _cut(text: str, max_tokens: int) -> Completion:
    tokens = re.findall(r"\s*\S+", text)
    if len(tokens) > max_tokens:
        return Completion("".join(tokens[:max_tokens]), max_tokens, Finish.LENGTH)
    return Completion(text, len(tokens), Finish.STOP)
