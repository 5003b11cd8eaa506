"""The Keck service end to end: a real server in a process of its own, real connections, kills and hostile clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck import Limits, LocalKeck
from kernelzero.keck.serve.dispatch import Dispatcher, QueueFull, ShuttingDown, Ticket
from kernelzero.keck.serve.questions import Questions, read_reports, read_verdicts, report_job, verdict_job
from kernelzero.keck.serve.remote import RemoteKeck, _chunks, _ServerLimits
from kernelzero.keck.serve.service import ServeOptions, serve
from kernelzero.keck.serve.store import StoredKeck
from kernelzero.records import GateReport, Status, Task
from tests.keck_stub import StubKeck, jobs_of, verdict_on

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """`python -m tests.keck_stub` on a port that stays the same over restarts."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._options = options
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.keck_stub", "--port", str(self.port), *self._options]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def wait(self) -> None:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{self.url}/health")
                return
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, text = self.process.communicate(timeout=20)
        return self.process.returncode, text


@contextlib.contextmanager
def running(*options: str):
    server = Server(*options)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def server():
    """A quick server with a token and small limits."""
    with running(
        "--token", "secret", "--body-mib", "0.1", "--jobs-a-request", "300", "--jobs-queued", "400"
    ) as started:
        yield started


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer secret"}, timeout=20) as opened:
        yield opened


def body_of(jobs, **changes):
    return {"jobs": [verdict_job(*job) for job in jobs], "timed": True, **changes}


def lines_of(response):
    return [json.loads(line) for line in response.text.splitlines() if line]


def due(jobs, timed=True):
    return {i: verdict_on(*job, timed) for i, job in enumerate(jobs)}


def wait_until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to pass")


# --- the HTTP interface ---


def test_verdicts_stream_as_lines(client):
    jobs = jobs_of("a", 3)
    response = client.post("/v1/verdicts", json=body_of(jobs))
    assert response.headers["content-type"] == "application/x-ndjson"
    *answers, end = lines_of(response)
    assert end == {"done": 3}
    assert {a["index"]: a["verdict"] for a in answers} == {i: v.to_json() for i, v in due(jobs).items()}


def test_reports_stream_as_lines(client):
    body = {"jobs": [report_job(Task("t"), ["torch.relu"])]}
    assert lines_of(client.post("/v1/reports", json=body)) == [
        {"index": 0, "report": GateReport(True, "", "1 APIs").to_json()},
        {"done": 1},
    ]


def test_no_jobs_are_done_at_once(client):
    assert lines_of(client.post("/v1/verdicts", json={"jobs": []})) == [{"done": 0}]


def test_health_needs_no_token_and_tells_the_limits(server):
    health = httpx.get(f"{server.url}/health").json()
    assert health["service"] == "kernelzero-keck"
    assert health["workers"] == 1
    assert health["uptime_s"] > 0
    assert health["limits"] == {"body_bytes": 104857, "jobs_a_request": 300, "jobs_queued": 400}


@pytest.mark.parametrize("given", [None, "Bearer secre", "Basic secret", "Bearer \xe4"])
@pytest.mark.parametrize("path", ["/v1/verdicts", "/v1/reports", "/v1/queue", "/metrics"])
def test_a_wrong_token_is_refused_before_anything_is_read(server, path, given):
    headers = [(b"Authorization", given.encode("latin-1"))] if given else []
    method = "POST" if path in ("/v1/verdicts", "/v1/reports") else "GET"
    response = httpx.request(
        method, server.url + path, headers=headers, content=b"no JSON" if method == "POST" else None
    )
    assert response.status_code == 401
    assert response.json() == {"error": "the bearer token is missing or wrong"}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff\xfe\xff", "the body is not JSON"),
        (b"[" * 50_000, "nested too deeply"),
        (b"[]", "the body: an object is due"),
        (b"{}", "the body has no jobs"),
        (b'{"jobs": {}}', "jobs: a list is due"),
        (b'{"jobs": [], "tmied": true}', "the body: unknown field 'tmied'; known are id, jobs, timed"),
        (b'{"jobs": [], "timed": 1}', "timed: true or false is due"),
        (b'{"jobs": [], "id": ""}', "id: a text of 1 to 200 characters is due"),
        (b'{"jobs": [1]}', "jobs[0]: an object is due, got 1"),
        (b'{"jobs": [{"task": {"source": "s"}}]}', "jobs[0].candidate: an object is due"),
        (b'{"jobs": [{"task": {}, "candidate": {"source": "c"}}]}', "jobs[0].task.source: a text is due"),
        (b'{"jobs": [{"task": {"source": "s", "apis": "x"}, "candidate": {"source": "c"}}]}', "jobs[0].task.apis"),
        (b'{"jobs": [{"task": {"source": "s"}, "candidate": {"source": "c", "lang": 1}}]}', "unknown field 'lang'"),
        (b'{"jobs": [{"task": {"source": "s"}, "candidate": {"source": "c", "backend": []}}]}', "triton or cuda"),
        (b'{"jobs": [{"task": {"source": "s"}, "candidate": {"source": "c"}, "a\\nb": 1}]}', "unknown field 'a\\nb'"),
    ],
)  # fmt: skip
def test_a_bad_body_is_one_clear_line(client, body, line):
    response = client.post("/v1/verdicts", content=body)
    assert response.status_code == 422
    assert line in response.json()["error"]
    assert "\n" not in response.json()["error"]


def test_an_unknown_path_and_method_are_json(client):
    assert client.get("/v2/verdicts").json() == {"error": "not found"}
    assert client.get("/v1/verdicts").status_code == 405


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused(client, chunked):
    body = b" " * 200_000
    pieces = (body[i : i + 10_000] for i in range(0, len(body), 10_000))
    response = client.post("/v1/verdicts", content=pieces if chunked else body)
    assert response.status_code == 413
    assert "104857 bytes" in response.json()["error"]


def test_an_endless_chunked_body_ends_early(server):
    """A client that never ends its body gets the answer while it is still sending."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        headers = "Host: x\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked"
        sock.sendall(f"POST /v1/verdicts HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 2_000_000 and not _readable(sock):
                sock.sendall(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                sent += 0x4000
        with contextlib.suppress(ConnectionError):
            assert b" 413 " in sock.recv(100)
    assert sent < 2_000_000


def _readable(sock):
    import select

    return bool(select.select([sock], [], [], 0.005)[0])


def test_too_many_jobs_in_one_request(client):
    response = client.post("/v1/verdicts", json=body_of(jobs_of("a", 301)))
    assert response.status_code == 413
    assert response.json() == {"error": "301 jobs in one request, 300 may be"}


def test_a_full_queue_says_when_to_come_back(server, client):
    slow = body_of(jobs_of("slow", 299, words="sleep=0.01"))
    with client.stream("POST", "/v1/verdicts", json=slow) as first:
        lines = first.iter_lines()
        next(lines)
        refused = client.post("/v1/verdicts", json=body_of(jobs_of("b", 200)))
        assert refused.status_code == 429
        assert "ask again" in refused.json()["error"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        # A small one still fits, and does not wait for the large one.
        assert lines_of(client.post("/v1/verdicts", json=body_of(jobs_of("c", 2))))[-1] == {"done": 2}
        assert client.get("/v1/queue").json()["requests"][0]["unanswered"] > 0
    wait_until(lambda: not client.get("/v1/queue").json()["waiting"])


def test_metrics_are_what_prometheus_reads(client):
    client.post("/v1/verdicts", json=body_of(jobs_of("metrics", 20)))
    client.post("/v1/verdicts", content=b"{")
    text = client.get("/metrics").text
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    statuses = sum(v for k, v in values.items() if k.startswith("kernelzero_keck_verdicts_total{"))
    assert statuses >= 20
    assert values["kernelzero_keck_answer_seconds_count"] >= statuses
    assert values['kernelzero_keck_judged_seconds_bucket{le="+Inf"}'] == values["kernelzero_keck_judged_seconds_count"]
    assert values['kernelzero_keck_refused_total{code="422"}'] >= 1
    assert values["kernelzero_keck_queue_jobs"] == 0


def test_the_jobs_of_a_client_that_went_away_are_dropped(tmp_path):
    log = tmp_path / "judged"
    with running("--log", str(log), "--batch", "4") as server:
        jobs = jobs_of("gone", 200, words="sleep=0.02")
        with httpx.stream("POST", f"{server.url}/v1/verdicts", json=body_of(jobs)) as response:
            next(response.iter_lines())
        wait_until(lambda: not httpx.get(f"{server.url}/v1/queue").json()["running"])
        assert httpx.get(f"{server.url}/v1/queue").json() == {"waiting": 0, "running": 0, "requests": []}
        assert len(log.read_text().splitlines()) <= 20
        assert "cancelled_jobs_total 1" in httpx.get(f"{server.url}/metrics").text


# --- many clients, and kills ---


def test_64_clients_at_once(tmp_path):
    log = tmp_path / "judged"
    with running("--log", str(log), "--store", str(tmp_path / "keck.sqlite"), "--batch", "64") as server:

        def ask(number):
            jobs = jobs_of(f"client{number}", 15) + jobs_of("shared", 5)
            with RemoteKeck(server.url, patience_s=20) as keck:
                answers = list(keck.judge(jobs, timed=bool(number % 2)))
            assert len(answers) == 20
            assert dict(answers) == due(jobs, bool(number % 2))

        with ThreadPoolExecutor(64) as pool:
            list(pool.map(ask, range(64)))
        assert server.end()[0] == 0
    judged = Counter(log.read_text().splitlines())
    # The shared jobs are asked by 64, with and without a time.
    assert sum(judged.values()) <= 64 * 15 + 2 * 5
    assert len(judged) == 64 * 15 + 5


def test_a_server_killed_again_and_again_loses_and_doubles_nothing(tmp_path):
    log = tmp_path / "judged"
    server = Server("--log", str(log), "--store", str(tmp_path / "keck.sqlite"), "--sleep-s", "0.002")
    kills = 2
    try:

        def ask(number):
            jobs = jobs_of(f"client{number}", 40) + jobs_of("shared", 10)
            # Requests of 25 jobs, so that some are finished, some broken and some not begun when the server dies.
            with RemoteKeck(server.url, patience_s=30, jobs_a_request=25) as keck:
                answers = list(keck.judge(jobs))
            assert len(answers) == 50
            assert dict(answers) == due(jobs)

        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(ask, number) for number in range(16)]
            for kill in range(kills):
                wait_until(lambda least=150 * (kill + 1): log.exists() and log.read_text().count("\n") >= least)
                server.kill()
                server.start()
            for future in asking:
                future.result()
    finally:
        server.kill()
    judged = Counter(log.read_text().splitlines())
    assert len(judged) == 16 * 40 + 10
    # Only the one job that was judged and not yet kept when the server was killed may be judged again.
    assert sum(judged.values()) - len(judged) <= kills


def test_a_signal_ends_the_server_gracefully(tmp_path):
    log = tmp_path / "judged"
    with running("--log", str(log), "--batch", "5", "--grace-s", "5") as server:
        jobs = jobs_of("a", 100, words="sleep=0.05")
        with httpx.stream("POST", f"{server.url}/v1/verdicts", json=body_of(jobs), timeout=10) as response:
            lines = response.iter_lines()
            seen = [json.loads(next(lines))]
            server.process.send_signal(signal.SIGTERM)
            seen += [json.loads(line) for line in lines if line]
        _, text = server.process.communicate(timeout=10)
    assert server.process.returncode == 0, text
    # The batch that ran was answered, the client was told that the rest was not.
    assert "shutting down" in seen[-1]["error"]
    assert len(seen) - 1 == len(log.read_text().splitlines()) == 5


def test_a_job_that_hangs_does_not_hold_up_the_end():
    with running("--grace-s", "0.1") as server:
        hanging = body_of(jobs_of("a", 1, words="sleep=60"))
        with httpx.stream("POST", f"{server.url}/v1/verdicts", json=hanging) as response:
            started = time.monotonic()
            assert server.end(signal.SIGINT)[0] == 0
            assert time.monotonic() - started < 10
            assert "shutting down" in next(response.iter_lines())


def test_a_server_that_fails_says_so_and_ends(tmp_path):
    store = tmp_path / "keck.sqlite"
    with running("--store", str(store), "--sleep-s", "0.05") as server:
        for name in ("keck.sqlite", "keck.sqlite-wal"):
            (tmp_path / name).write_bytes(b"x" * 20_000)
        with pytest.raises(InfrastructureError, match="given up"), RemoteKeck(server.url, patience_s=1) as keck:
            list(keck.judge(jobs_of("a", 10)))
        _, text = server.process.communicate(timeout=10)
        assert "damaged or not a verdict store" in text
        assert server.process.returncode != 0


# --- the client ---


def test_a_large_call_is_cut_below_the_server_s_limits(server):
    jobs = jobs_of("large", 700, words="x" * 100)
    with RemoteKeck(server.url, "secret", patience_s=20) as keck:
        answers = list(keck.judge(jobs))
        reports = dict(keck.examine([(task, ["torch.relu"]) for task, _ in jobs]))
    assert len(answers) == 700
    assert dict(answers) == due(jobs)
    assert len(reports) == 700
    assert set(reports.values()) == {GateReport(True, "", "1 APIs")}


def test_sources_travel_as_they_are(server):
    jobs = [(Task("t \ud800 ü \0", ("torch.relu",), "n"), c) for _, c in jobs_of("\udfff\u2028\n", 2)]
    with RemoteKeck(server.url, "secret") as keck:
        assert dict(keck.judge(jobs)) == due(jobs)


def test_chunks_keep_within_the_limits():
    texts = ["x" * n for n in (10, 500, 3000, 20, 20, 20, 20)]
    chunks = list(_chunks(texts, _ServerLimits(body_bytes=2048, jobs=3)))
    assert [i for chunk in chunks for i in chunk] == list(range(7))
    assert [list(chunk) for chunk in chunks] == [[0, 1], [2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("url", "token", "jobs", "line"),
    [
        (None, "wrong", jobs_of("a", 1), "bearer token"),
        (None, "se cret", jobs_of("a", 1), "printable ASCII"),
        (None, "secret", jobs_of("a", 1, words="x" * 200_000), "longer than 104857 bytes"),
        ("ftp://host", None, [], "begins with http"),
        ("judges:8017", None, [], "begins with http"),
        ("http://judges:port", None, [], "not an address"),
    ],
)
def test_what_the_client_may_not_is_a_usage_error(server, url, token, jobs, line):
    with pytest.raises(UsageError, match=line) as error, RemoteKeck(url or server.url, token, patience_s=5) as keck:
        list(keck.judge(jobs))
    assert "\n" not in str(error.value)


def test_another_kind_of_server_is_told_apart(server):
    with pytest.raises(UsageError, match="not a Keck service"), RemoteKeck(f"{server.url}/v1", "secret") as keck:
        list(keck.judge(jobs_of("a", 1)))


def test_a_server_that_is_not_there_is_an_infrastructure_error_in_time():
    started = time.monotonic()
    keck = RemoteKeck(f"http://127.0.0.1:{free_port()}", patience_s=1.0)
    with keck, pytest.raises(InfrastructureError, match="given up after") as error:
        list(keck.judge(jobs_of("a", 1)))
    assert time.monotonic() - started < 3
    assert "\n" not in str(error.value)


class Scripted:
    """Replies to connection number i with `replies[i]`, bytes as they are, and hangs up."""

    def __init__(self, replies):
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.bodies = []
        threading.Thread(target=self._run, args=(replies,), daemon=True).start()

    def _run(self, replies):
        for reply in replies:
            connection, _ = self._sock.accept()
            with connection, connection.makefile("rb") as file:
                head = b"".join(iter(file.readline, b"\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length" in head else 0
                self.bodies.append(file.read(length))
                connection.sendall(reply)
        self._sock.close()


LIMITS = {"body_bytes": 10_000, "jobs_a_request": 10, "jobs_queued": 100}
HEALTH = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + json.dumps({"limits": LIMITS}).encode()


def stream(*data, end=b""):
    lines = b"".join(json.dumps(d).encode() + b"\n" for d in data)
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + lines + end


def answer(index):
    return {"index": index, "verdict": verdict_on(*jobs_of("a", 4)[index], True).to_json()}


def test_only_unanswered_jobs_are_asked_again_whatever_breaks():
    jobs = jobs_of("a", 4)

    def position(asked, index):
        return {"index": asked, "verdict": verdict_on(*jobs[index], True).to_json()}

    server = Scripted(
        [
            HEALTH,
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 503 Unavailable\r\nConnection: close\r\n\r\n<html>\n\n proxy",
            stream(answer(2), answer(2), end=b'{"index": 3, "verd'),  # doubled, then broken off
            stream(position(2, 3), {"error": "the server is shutting down"}),  # left were 0, 1, 3
            stream({"done": 2}),  # a server that forgot
            b"",
            stream(position(1, 1), position(0, 0), {"done": 2}),
        ]
    )
    with RemoteKeck(server.url, patience_s=10) as keck:
        answers = list(keck.judge(jobs))
    assert [index for index, _ in answers] == [2, 3, 1, 0]
    assert dict(answers) == due(jobs)
    sent = [json.loads(body) for body in server.bodies[1:]]
    assert [len(body["jobs"]) for body in sent] == [4, 4, 4, 3, 2, 2, 2]
    assert len({body["id"] for body in sent}) == 1


def test_an_answer_to_no_question_is_an_infrastructure_error():
    for index in (1, -1):
        server = Scripted([HEALTH, stream({**answer(0), "index": index})])
        with RemoteKeck(server.url, patience_s=5) as keck, pytest.raises(InfrastructureError, match="of 1"):
            list(keck.judge(jobs_of("a", 1)))


@pytest.mark.parametrize("bad", [{"index": 0}, {"index": 7, "verdict": {}}, {"index": 0, "verdict": {"status": "odd"}}])
def test_an_answer_that_is_none_is_an_infrastructure_error(bad):
    server = Scripted([HEALTH, stream(bad)])
    with RemoteKeck(server.url, patience_s=5) as keck, pytest.raises(InfrastructureError, match="cannot be read"):
        list(keck.judge(jobs_of("a", 1)))


# --- the queue ---


class Listener:
    """What a request is told."""

    def __init__(self, dispatcher, jobs, kind="verdicts", timed=True, id=""):
        self.lines, self.ended = [], threading.Event()
        self.ticket = Ticket(Questions(kind, tuple(jobs), timed, id), self._tell)
        dispatcher.submit(self.ticket)

    def _tell(self, line):
        self.lines.append(line)
        if line.answer is None:
            self.ended.set()

    def answers(self):
        assert self.ended.wait(10)
        return {line.index: line.answer for line in self.lines[:-1]}


@contextlib.contextmanager
def dispatching(keck, **options):
    dispatcher = Dispatcher(keck, **options)
    try:
        yield dispatcher
    finally:
        dispatcher.close()


def test_a_small_request_does_not_wait_for_a_large_one():
    with dispatching(StubKeck(sleep_s=0.001), batch=8) as dispatcher:
        large = Listener(dispatcher, jobs_of("large", 10_000))
        time.sleep(0.05)
        small = [Listener(dispatcher, jobs_of(f"small{i}", 2)) for i in range(3)]
        mixed = Listener(dispatcher, [(Task("t"), ())], kind="reports", timed=False)
        before = len(large.lines)
        for listener in [*small, mixed]:
            assert listener.answers()
        assert len(large.lines) - before < 50
        dispatcher.cancel(large.ticket)
        assert dispatcher.queue()["waiting"] == 0


def test_shares_are_equal_while_two_wait():
    with dispatching(StubKeck(sleep_s=0.001), batch=10) as dispatcher:
        first, second = (Listener(dispatcher, jobs_of(name, 300)) for name in "ab")
        first.answers()
        assert len(second.lines) > 270
        assert second.answers() == due(jobs_of("b", 300))


def test_jobs_asked_before_under_an_id_are_not_judged_again():
    stub, jobs = StubKeck(), [*jobs_of("a", 10), *jobs_of("b", 1, words="infra_error")]
    with dispatching(stub) as dispatcher:
        Listener(dispatcher, jobs[:6], id="x").answers()
        assert Listener(dispatcher, jobs, id="x").answers() == due(jobs)
        assert sum(stub.judged.values()) == 11
        Listener(dispatcher, jobs, id="x").answers()
        # An infrastructure error is no answer to be remembered.
        assert sum(stub.judged.values()) == 12
        Listener(dispatcher, jobs, id="y").answers()
        Listener(dispatcher, jobs, id="x", timed=False).answers()
        assert sum(stub.judged.values()) == 12 + 22


def test_a_keck_that_stops_is_asked_once_more_for_the_rest():
    class Stops(StubKeck):
        stops = 1

        def judge(self, jobs, *, timed=True):
            for number, answer in enumerate(super().judge(jobs, timed=timed)):
                if number == 2 and self.stops:
                    self.stops -= 1
                    raise InfrastructureError("Keck\nstopped")
                yield answer

    jobs = jobs_of("a", 6)
    with dispatching(Stops()) as dispatcher:
        assert Listener(dispatcher, jobs).answers() == due(jobs)
    hopeless = Stops()
    hopeless.stops = 100
    with dispatching(hopeless, device="here") as dispatcher:
        verdicts = Listener(dispatcher, jobs).answers()
    assert Counter(v.status is Status.INFRA_ERROR for v in verdicts.values()) == {True: 2, False: 4}
    assert {(v.reason, v.device) for v in verdicts.values() if not v.status.is_outcome} == {("Keck stopped", "here")}


def test_a_keck_with_a_defect_ends_every_request():
    class Defect(StubKeck):
        def judge(self, jobs, *, timed=True):
            raise ZeroDivisionError

    with dispatching(Defect()) as dispatcher:
        waiting = Listener(dispatcher, jobs_of("a", 3))
        assert waiting.ended.wait(5)
        assert "failed" in waiting.lines[-1].error
        wait_until(lambda: isinstance(dispatcher.failure, ZeroDivisionError))
        with pytest.raises(ShuttingDown):
            Listener(dispatcher, jobs_of("a", 1))


def test_the_queue_is_bounded_and_says_when_there_is_room():
    with dispatching(StubKeck(sleep_s=0.01), jobs_queued=20, batch=4) as dispatcher:
        Listener(dispatcher, jobs_of("a", 18))
        with pytest.raises(QueueFull) as full:
            Listener(dispatcher, jobs_of("b", 20))
        assert 1 <= full.value.retry_after_s <= 60
        Listener(dispatcher, jobs_of("b", 2))


# --- parts ---


def test_bodies_are_read_as_they_were_written():
    jobs = tuple(jobs_of("a", 3))
    body = json.dumps(body_of(jobs, timed=False, id="x")).encode()
    assert read_verdicts(body) == Questions("verdicts", jobs, False, "x")
    body = json.dumps({"jobs": [report_job(Task("t", ("a",), "n"), ["b"])]}).encode()
    assert read_reports(body) == Questions("reports", ((Task("t", ("a",), "n"), ("b",)),))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"host": "0.0.0.0"}, "needs a token"),
        ({"token": "a b"}, "printable ASCII"),
        ({"jobs_queued": 0}, "jobs_queued"),
        ({"port": 70_000}, "cannot listen"),
        ({"host": "no.such.host.invalid", "token": "t"}, "cannot listen"),
    ],
)
def test_options_that_cannot_be(monkeypatch, changes, line):
    monkeypatch.delenv("KERNELZERO_KECK_TOKEN", raising=False)
    with pytest.raises(UsageError, match=line):
        serve(ServeOptions(**{"port": 0, **changes}), lambda options: (StubKeck(), 1))


def test_a_taken_port_is_one_line(server):
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{server.port}: Address already in use"):
        serve(ServeOptions(port=server.port), lambda options: (StubKeck(), 1))


# --- the real Keck ---


@pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
def test_the_real_keck_behind_store_and_service(tmp_path):
    from kernelzero.records import Candidate
    from tests.test_keck import KERNEL, RELU, WRONG

    jobs = [(Task(RELU), Candidate(KERNEL)), (Task(RELU), Candidate(WRONG))]
    port = free_port()
    code = (
        "from pathlib import Path; from kernelzero.keck.serve.service import *\n"
        f"serve(ServeOptions(port={port}, workers=1, store=Path({str(tmp_path / 'keck.sqlite')!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        with RemoteKeck(f"http://127.0.0.1:{port}", patience_s=30) as keck:
            verdicts = dict(keck.judge(jobs))
            [(_, report)] = keck.examine([(Task(RELU), ["torch.relu"])])
        assert [verdicts[i].status for i in range(2)] == [Status.CORRECT, Status.INCORRECT]
        assert verdicts[0].timing is not None
        assert report.valid is True
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    # The store of the service answers a Keck of the same limits without judging.
    from kernelzero.keck.serve.store import StoreKey

    key = StoreKey(limits="default")
    with StoredKeck(LocalKeck(1, Limits(timeout_s=10.0)), tmp_path / "keck.sqlite", key=key) as keck:
        assert dict(keck.judge(jobs)) == verdicts
        assert keck.asked == 0
