"""The fake sampler, model profiles and how a sampler is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelzero.errors import UsageError
from kernelzero.policy import Sampler, nano_path, open_sampler, prompt_style
from kernelzero.policy import profile as profiles
from kernelzero.policy.fake import FakeSampler
from kernelzero.policy.profile import read_profile, write_profile
from kernelzero.records import Finish, Prompt, Role, Sampling


def prompt(text: str) -> Prompt:
    return Prompt(({"role": "system", "content": "s"}, {"role": "user", "content": text}))


def texts(sampler: Sampler, *asked: str, n: int = 3) -> list[list[str]]:
    return [[c.text for c in group] for group in sampler.sample([prompt(t) for t in asked], n, Sampling())]


def test_fake_answers() -> None:
    assert isinstance(FakeSampler([]), Sampler)
    assert texts(FakeSampler(["x", "y"]), "a", "b") == [["x", "y", "x"]] * 2
    assert texts(FakeSampler({"a": "1", "b": ["2", "3"]}), "b", "a") == [["2", "3", "2"], ["1"] * 3]
    assert texts(FakeSampler(lambda p, i: p.messages[-1]["content"] * i), "a") == [["", "a", "aa"]]


def test_fake_counts_and_cuts() -> None:
    seen: list[tuple[int, int]] = []
    sampler = FakeSampler(["one two  three\n", "one two three four"])
    whole, cut = sampler.sample([prompt("a")], 2, Sampling(max_tokens=3), lambda *at: seen.append(at))[0]
    assert (whole.text, whole.tokens, whole.finish) == ("one two  three\n", 3, Finish.STOP)
    assert (cut.text, cut.tokens, cut.finish) == ("one two three", 3, Finish.LENGTH)
    assert seen == [(2, 2)]
    sampler.close()
    assert sampler.closed


def test_profile(tmp_path: Path) -> None:
    assert prompt_style(tmp_path) == "full"
    assert prompt_style("org/model") == "full"
    write_profile(tmp_path, "compact", Role.CODER)
    assert prompt_style(tmp_path) == "compact"
    assert read_profile(tmp_path) == {"prompt": "compact", "role": "coder"}


@pytest.mark.parametrize("text", ["{", "[]", '{"prompt": "tiny"}'])
def test_bad_profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernelzero.json").write_text(text)
    with pytest.raises(UsageError, match=r"kernelzero\.json"):
        prompt_style(tmp_path)


def test_nano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "NANO_FOLDER", tmp_path)
    with pytest.raises(UsageError, match="nano:coder is missing"):
        open_sampler("nano:coder")
    (tmp_path / "coder").mkdir()
    (tmp_path / "coder" / "config.json").touch()
    write_profile(tmp_path / "coder", "compact", Role.CODER)
    assert prompt_style("nano:coder") == "compact"
    assert nano_path("coder") == nano_path(Role.CODER) == tmp_path / "coder"
    with pytest.raises(UsageError, match="nano:proposer, nano:coder"):
        open_sampler("nano:judge")


def test_an_endpoint_needs_a_model() -> None:
    with pytest.raises(UsageError, match="#model"):
        open_sampler("http://localhost:8000/v1")
