"""What the Keck service costs and how fair it is, with 64 clients at once: python benchmarks/service.py.

A Keck that answers at once shows the cost of the service itself: HTTP, queue, store. One that takes a millisecond a
job shows what 63 clients of two jobs wait for beside one of 10,000. With --real, the CPU Keck judges the same pairs
directly and behind the service. All clients are threads of one Python process, on the same machine as the server.
Prints a table, writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kernelzero.keck import LocalKeck
from kernelzero.keck.serve.remote import RemoteKeck
from kernelzero.keck.serve.service import ServeOptions, serve
from kernelzero.keck.serve.store import StoredKeck
from kernelzero.records import Candidate, GateReport, Status, Task, Verdict

RESULTS = Path(__file__).resolve().parent / "results" / "service.json"
CLIENTS = 64
Jobs = list[tuple[Task, Candidate]]


class FakeKeck:
    """Finds everything incorrect after a while."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        for i, (_, candidate) in enumerate(jobs):
            if self._sleep_s:
                time.sleep(self._sleep_s)
            yield i, Verdict(Status.INCORRECT, "judged by a fake", "fake", candidate.backend, timed=timed)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        for i in range(len(jobs)):
            yield i, GateReport(True, "", "examined by a fake")

    def close(self) -> None:
        pass


def fake_jobs(name: str, count: int) -> Jobs:
    """Distinct jobs with sources of a few kilobytes, as real ones have."""
    return [
        (Task(f"# {name} {i // 8}\n" + "x" * 1000), Candidate(f"# {name} {i}\n" + "x" * 3000)) for i in range(count)
    ]


@contextmanager
def server(kind: str, store: Path | None) -> Iterator[str]:
    """A server process; its address."""
    command = [sys.executable, __file__, "--serve", kind, *(["--store", str(store)] if store else [])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = next(line for line in process.stderr if "http://" in line).split()[-1]
    threading.Thread(target=process.stderr.read, daemon=True).start()
    while True:
        try:
            httpx.get(f"{url}/health")
            break
        except httpx.TransportError:
            time.sleep(0.05)
    try:
        yield url
    finally:
        process.terminate()
        process.wait()


def serve_fake(kind: str, store: Path | None) -> None:
    """Runs in the server's process."""
    if kind == "real":
        serve(ServeOptions(port=0, store=store))
        return

    def make(_: ServeOptions) -> tuple[Any, int]:
        keck = FakeKeck(0.0 if kind == "instant" else 0.001)
        return (StoredKeck(keck, store) if store else keck), 2

    serve(ServeOptions(port=0), make)


def ask_all(url: str, parts: list[Jobs]) -> tuple[float, list[float]]:
    """All clients at once: wall seconds, and the seconds that each waited for its last verdict."""

    def ask(jobs: Jobs) -> float:
        with RemoteKeck(url, jobs_a_request=10_000) as keck:
            barrier.wait()
            started = time.perf_counter()
            assert len(list(keck.judge(jobs))) == len(jobs)
            return time.perf_counter() - started

    barrier = threading.Barrier(len(parts))
    with ThreadPoolExecutor(len(parts)) as pool:
        started = time.perf_counter()
        waits = list(pool.map(ask, parts))
        return time.perf_counter() - started, waits


def throughput(jobs_each: int) -> list[dict[str, Any]]:
    """Verdicts a second of 64 clients on a Keck that answers at once: without store, into one, and out of it."""
    parts = [fake_jobs(f"client {c}", jobs_each) for c in range(CLIENTS)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, store in (("no store", None), ("into a store", Path(folder) / "k.sqlite"), ("out of it", None)):
            path = Path(folder) / "k.sqlite" if name == "out of it" else store
            with server("instant", path) as url:
                seconds, waits = ask_all(url, parts)
            count = CLIENTS * jobs_each
            rows.append({"name": name, "verdicts": count, "seconds": seconds, "verdicts_per_s": count / seconds,
                         "client_p50_s": statistics.median(waits), "client_max_s": max(waits)})  # fmt: skip
    return rows


def fairness() -> dict[str, Any]:
    """63 clients of two jobs beside one of 10,000, a millisecond a job."""
    with server("slow", None) as url:
        large = fake_jobs("large", 10_000)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_all, url, [large])
            while httpx.get(f"{url}/v1/queue").json()["waiting"] == 0:
                time.sleep(0.05)
            _, waits = ask_all(url, [fake_jobs(f"small {c}", 2) for c in range(CLIENTS - 1)])
            seconds, _ = asking.result()
    waits.sort()
    return {"large_s": seconds, "small_p50_s": statistics.median(waits), "small_p95_s": waits[int(0.95 * len(waits))],
            "small_max_s": waits[-1]}  # fmt: skip


def real(count: int) -> dict[str, Any]:
    """The CPU Keck directly and behind the service, asked by 64 clients, on the same pairs."""
    from keck_cpu import pairs

    jobs = pairs(count, seed=0)
    with LocalKeck() as keck:
        list(keck.judge(jobs[:1] * 2))
        started = time.perf_counter()
        assert len(list(keck.judge(jobs))) == count
        direct = time.perf_counter() - started
    with server("real", None) as url:
        ask_all(url, [jobs[:1]])
        served, _ = ask_all(url, [part for c in range(CLIENTS) if (part := jobs[c::CLIENTS])])
    return {"pairs": count, "direct_per_s": count / direct, "served_per_s": count / served}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="of each of the 64 clients")
    parser.add_argument("--real", type=int, default=0, help="pairs for the CPU Keck; 0 leaves it out")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_fake(arguments.serve, arguments.store)
        return
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_before": os.getloadavg()[0],
        "clients": CLIENTS,
        "throughput": throughput(arguments.jobs),
        "fairness": fairness(),
    }
    print(f"{CLIENTS} clients, {arguments.jobs} jobs each, a Keck that answers at once")
    print(f"{'':<16}{'verdicts/s':>12}{'client p50 s':>14}{'client max s':>14}")
    for row in result["throughput"]:
        print(
            f"{row['name']:<16}{row['verdicts_per_s']:>12.0f}{row['client_p50_s']:>14.2f}{row['client_max_s']:>14.2f}"
        )
    fair = result["fairness"]
    print(f"\nbeside one client of 10,000 jobs ({fair['large_s']:.1f} s), 63 clients of 2 jobs waited")
    print(f"p50 {fair['small_p50_s']:.2f} s, p95 {fair['small_p95_s']:.2f} s, at most {fair['small_max_s']:.2f} s")
    if arguments.real:
        result["real"] = real(arguments.real)
        print(
            "\nCPU Keck, {pairs} pairs: {direct_per_s:.2f}/s directly, {served_per_s:.2f}/s served".format(
                **result["real"]
            )
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
