"""The endpoint sampler against a local server that answers well, badly and not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelzero.errors import InfrastructureError
from kernelzero.policy import open_sampler
from kernelzero.policy.endpoint import EndpointSampler, apportion
from kernelzero.records import Finish, Prompt, Sampling
from tests.replay_server import ReplayServer, Reply


class Server(ReplayServer):
    """Replies to request number i with the (status, JSON) of `script(i, body)`."""

    script: Callable[[int, dict[str, Any]], Any]

    def __init__(self) -> None:
        super().__init__(lambda i, body: (200, answer(body.get("n", 1))))

    def reply(self, number: int, body: dict[str, Any]) -> Reply:
        status, said = self.script(number, body)
        return Reply(status, json.dumps(said))


def answer(n: int, text: str = "hello", finish: str = "stop", tokens: int = 6) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choices = [{"index": i, "message": message, "finish_reason": finish} for i in range(n)]
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def prompt(text: str) -> Prompt:
    return Prompt(({"role": "user", "content": text},))


def test_order_counts_and_progress(server: Server) -> None:
    server.script = lambda i, body: (200, answer(body["n"], body["messages"][0]["content"] * 2))
    seen: list[tuple[int, int]] = []
    sampler = EndpointSampler(server.url, "m", "key")
    groups = sampler.sample([prompt(c) for c in "abc"], 3, Sampling(0.5, 0.9, 77, 5), lambda *at: seen.append(at))
    assert [[c.text for c in group] for group in groups] == [["aa"] * 3, ["bb"] * 3, ["cc"] * 3]
    assert [c.tokens for c in groups[0]] == [2, 2, 2]
    assert seen == [(3, 9), (6, 9), (9, 9)]
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"], body["n"]) == (0.5, 0.9, 77, 5, 3)
    sampler.close()


def test_cut_off_and_empty(server: Server) -> None:
    server.script = lambda i, body: (200, answer(1, None if i else "x", "length"))  # type: ignore[arg-type]
    sampler = EndpointSampler(server.url, "m", "key")
    assert [c.finish for c in sampler.sample([prompt("a")], 1, Sampling())[0]] == [Finish.LENGTH]
    assert sampler.sample([prompt("a")], 1, Sampling())[0][0].text == ""
    sampler.close()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_tried_again(server: Server, status: int) -> None:
    server.script = lambda i, body: (200, answer(1)) if i == 2 else (status, {"error": {"message": "later"}})
    sampler = EndpointSampler(server.url, "m", "key")
    assert sampler.sample([prompt("a")], 1, Sampling())[0][0].text == "hello"
    assert len(server.bodies) == 3
    sampler.close()


def test_fails_for_good_in_one_line(server: Server) -> None:
    server.script = lambda i, body: (500, {"error": {"message": "out of\nmemory"}})
    sampler = EndpointSampler(server.url, "m", "key", retries=1)
    with pytest.raises(InfrastructureError, match=r"#m: .*out of") as caught:
        sampler.sample([prompt("a")] * 3, 1, Sampling())
    assert "\n" not in str(caught.value)
    sampler.close()


def test_wrong_key_is_not_tried_again(server: Server) -> None:
    server.script = lambda i, body: (401, {"error": {"message": "no such key"}})
    sampler = EndpointSampler(server.url, "m", "key")
    with pytest.raises(InfrastructureError, match="no such key"):
        sampler.sample([prompt("a")], 2, Sampling())
    assert len(server.bodies) == 1
    sampler.close()


def test_nobody_there() -> None:
    sampler = EndpointSampler("http://127.0.0.1:9/v1", "m", "key", retries=0)
    with pytest.raises(InfrastructureError, match="Connection error"):
        sampler.sample([prompt("a")], 1, Sampling())
    sampler.close()


@pytest.mark.parametrize("refuses", [True, False])
def test_a_server_that_knows_no_n(server: Server, refuses: bool) -> None:
    def script(i: int, body: dict[str, Any]) -> Reply:
        refused = refuses and body.get("n", 1) > 1
        return (400, {"error": {"message": "n must be 1"}}) if refused else (200, answer(1))

    server.script = script
    sampler = EndpointSampler(server.url, "m", "key")
    group = sampler.sample([prompt("a")], 3, Sampling(seed=7))[0]
    assert [c.tokens for c in group] == [6, 6, 6]
    assert [b["seed"] for b in server.bodies if "n" not in b] == ([7, 8, 9] if refuses else [8, 9])
    sampler.close()


def test_opened_by_address(server: Server) -> None:
    sampler = open_sampler(f"{server.url}#some/model", style="compact", api_key="key")
    assert (sampler.name, sampler.style) == (f"{server.url}#some/model", "compact")
    assert len(sampler.sample([prompt("a")], 2, Sampling())[0]) == 2
    assert server.bodies[0]["model"] == "some/model"
    sampler.close()


def test_parts_add_up() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(7, [0, 0]) == [4, 3]
    assert apportion(9, [100, 0, 50]) == [6, 0, 3]
    assert apportion(0, [5]) == [0] and apportion(3, []) == []
