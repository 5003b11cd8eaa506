"""Parts of Keck on a GPU that need none: leases, names of kernels, the broker's rules, the clock's arithmetic."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")

COPY = "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_23direct_copy_kernel_cudaERNS_14TensorIteratorBaseE"
PRODUCT = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_cublas"


@pytest.mark.parametrize(
    ("ran", "torch_kernels", "word"),
    [
        (["mine"], 0, None),
        (["mine", COPY], 1, None),
        (["mine", COPY, COPY], 1, "PyTorch ran 2 kernels"),
        (["mine", COPY, COPY], None, None),
        (["mine", PRODUCT], 5, "not the candidate's own"),
        (["mine", "_ZN2at6native18elementwise_kernelI_add"], 5, "not the candidate's own"),
        (["mine", "_ZN2at4cuda12spin_kernelEl"], 0, None),
        ([COPY], 1, "no kernel of its own"),
        ([], 0, "no kernel of its own"),
    ],
)
def test_whose_kernels_ran(ran, torch_kernels, word):
    from kernelzero.keck.gpu.provenance import foreign_kernel

    found = foreign_kernel([(name, 7, 1000) for name in ran], {"mine"}, torch_kernels)
    assert (found is None) if word is None else (word in found)


@pytest.mark.parametrize("word", ["-O3", "-shared", "-fPIC", "--gpu-name=sm_90a", "-lineinfo", "-I/usr/include", "-o"])
def test_the_broker_runs_what_triton_asks_for(word, tmp_path):
    from kernelzero.keck.gpu.broker import _harmless

    assert _harmless(word, tmp_path)
    assert _harmless(str(tmp_path / "kernel.ptx"), tmp_path)


@pytest.mark.parametrize(
    "word", ["-fplugin=x.so", "@file", "-Wl,-rpath=x", "-Bx", "/etc/passwd", "../x.c", "-xassembler"]
)
def test_the_broker_refuses_the_rest(word, tmp_path):
    from kernelzero.keck.gpu.broker import _harmless

    assert not _harmless(word, tmp_path)


def test_the_broker_knows_its_programs(tmp_path):
    from kernelzero.keck.gpu.broker import _answer

    reply = _answer(["/bin/sh", "-c", "true"], {"/usr/bin/ptxas": "ptxas"}, tmp_path, tmp_path)
    assert "not Triton's" in reply["refused"]


def _hold(folder, queue, exclusive):
    from kernelzero.keck.gpu.lease import Lease

    lease = Lease(folder, "gpu")
    with lease.exclusive() if exclusive else lease.shared():
        queue.put(("in", exclusive, time.monotonic()))
        time.sleep(0.3)
        queue.put(("out", exclusive, time.monotonic()))


def test_nobody_checks_while_somebody_times(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_hold, args=(tmp_path, queue, kind)) for kind in (False, True, False, True)]
    for process in processes:
        process.start()
    events = sorted((queue.get(timeout=20) for _ in range(8)), key=lambda event: event[2])
    for process in processes:
        process.join()
    inside: list[bool] = []
    for what, exclusive, _ in events:
        if what == "in":
            assert not (exclusive and inside), "a timing began beside others"
            assert True not in inside, "a check began beside a timing"
            inside.append(exclusive)
        else:
            inside.remove(exclusive)


def test_the_interval_of_a_race():
    from kernelzero.keck.gpu import timing

    race = timing._Race(None, None, [])
    race.times = {False: [1.9, 2.0, 2.1, 2.0, 2.0], True: [1.0] * 5}
    # mean 0.6926, standard deviation 0.0354 over five rounds, t = 2.776
    assert race._half_width() == pytest.approx(2.776 * 0.03540 / math.sqrt(5), rel=1e-3)


def race(reference_ms, candidate_ms, hidden_ms=(0.2, 0.2), dry=False, calls=(10, 10)):
    """A race that was run: a round for each pair of times; 0.08 ms before each call, `hidden_ms` more in a burst."""
    from kernelzero.keck.gpu import timing

    def burst(ms, hidden, calls):
        wall_ms = calls * (ms + 0.08) + hidden + 1.8
        return timing._Burst([(0, 1.0)] * calls, [ms] * calls, [0], wall_ms, 2.0, 1.8, calls * 0.08, dry)

    race = timing._Race(None, None, [])
    race.times = {False: reference_ms, True: candidate_ms}
    race.bursts = [
        (burst(a, hidden_ms[0], calls[0]), burst(b, hidden_ms[1], calls[1]))
        for a, b in zip(reference_ms, candidate_ms, strict=True)
    ]
    return race


def test_work_outside_of_the_timed_section_shows_on_the_judges_clock():
    from kernelzero.keck.machine import Untimeable

    honest = race([0.1] * 5, [0.05] * 5, hidden_ms=(0.2, 0.5)).timing()
    assert honest.speedup == pytest.approx(2.0)
    # A tenth of a millisecond a call, the reference's whole work, beside the events.
    with pytest.raises(Untimeable, match="two clocks disagree"):
        race([0.1] * 5, [0.001] * 5, hidden_ms=(0.2, 1.7)).timing()
    # Where the GPU waits for the host, the host's time is inside of the events, and its clock says nothing.
    assert race([0.1] * 5, [0.2] * 5, hidden_ms=(0.2, 9.0), dry=True).timing().speedup == pytest.approx(0.5)


def test_what_the_host_adds_to_a_burst_is_no_work_of_a_candidate_with_few_calls():
    slow = race([0.2] * 5, [2.0] * 5, hidden_ms=(2.5, 2.6), calls=(12, 3)).timing()
    assert slow.speedup == pytest.approx(0.1)
    fast = race([2.0] * 5, [0.2] * 5, hidden_ms=(2.5, 2.6), calls=(3, 12)).timing()
    assert fast.speedup == pytest.approx(10)


def test_no_interval_is_narrower_than_what_two_processes_differ_by():
    from kernelzero.keck.gpu import timing

    steady = race([2.0] * 5, [1.0] * 5).timing()
    assert steady.speedup == pytest.approx(2.0)
    assert steady.speedup_low == pytest.approx(2.0 * math.exp(-timing.SYSTEMATIC))


def test_a_candidate_whose_calls_differ_by_factors_is_refused_unless_the_machine_is_to_blame():
    from kernelzero.errors import InfrastructureError
    from kernelzero.keck.machine import Untimeable

    jumps = [1.0, 0.001, 1.0, 0.002, 0.001, 1.0]
    with pytest.raises(Untimeable, match="do not all do the same") as refusal:
        race([1.0, 1.01, 1.0, 0.99, 1.0, 1.0], jumps).timing()
    assert refusal.value.kind == "rejected"
    with pytest.raises(InfrastructureError, match="the GPU is not quiet"):
        race(list(reversed(jumps)), jumps).timing()


def test_one_disturbed_round_of_many_does_not_count():
    from kernelzero.errors import InfrastructureError
    from kernelzero.keck.machine import Untimeable

    once = race([1.0] * 15, [0.5] * 14 + [20.0]).timing()
    assert once.speedup == pytest.approx(2.0)
    assert once.speedup_low < 1.7
    with pytest.raises((Untimeable, InfrastructureError)):
        race([1.0] * 15, [0.5] * 12 + [20.0] * 3).timing()
    with pytest.raises((Untimeable, InfrastructureError)):
        race([1.0] * 5, [0.5] * 4 + [20.0]).timing()


def test_a_side_whose_first_call_loads_a_library_is_not_taken_for_a_slow_one():
    from kernelzero.keck.gpu import timing

    class Side(timing._Side):
        def burst(self, plan, spin_ms):
            ms = self.first.pop(0) if self.first else 0.5
            return timing._Burst(plan, [ms] * len(plan), [0], 9.0, spin_ms, spin_ms, 0.1, False)

    loads, slow = Side(None, True), Side(None, True)
    loads.first, slow.first = [900.0], [900.0, 800.0]
    loads.estimate()
    slow.estimate()
    assert (loads.call_ms, loads.calls()) == (0.5, 6)
    assert (slow.call_ms, slow.calls()) == (800.0, 1)


def test_a_burst_that_the_gpu_waited_for_is_taken_again_with_other_inputs():
    from kernelzero.keck.gpu import timing

    class Side(timing._Side):
        def __init__(self, dry):
            super().__init__(None, is_candidate=True)
            self.dry, self.plans, self.spins = dry, [], []
            self.call_ms = 1.0

        def burst(self, plan, spin_ms):
            self.plans.append(plan)
            self.spins.append(spin_ms)
            return timing._Burst(plan, [1.0] * len(plan), [0], 9.0, spin_ms, spin_ms, 0.1, self.dry.pop(0))

    numbers = iter(range(1000))
    side = Side([True, True, False])
    assert not side.queued_burst(lambda: (next(numbers), 1.0), 2.0).dry
    assert side.spins == [2.0, 4.0, 8.0]
    drawn = [number for plan in side.plans for number, _ in plan]
    assert len(set(drawn)) == len(drawn)
    hopeless = Side([True] * 5)
    assert hopeless.queued_burst(lambda: (0, 1.0), 2.0).dry
    assert hopeless.queued_burst(lambda: (0, 1.0), 2.0).dry
    assert hopeless.spins == [2.0, 4.0, 8.0, 8.0]


def test_who_waits_to_time_opens_the_door_again_while_somebody_inside_takes_long(tmp_path):
    import threading
    import time

    from kernelzero.keck.gpu.lease import Lease

    order = []
    with Lease(tmp_path, "gpu").shared():
        timer = threading.Thread(target=lambda: use(Lease(tmp_path, "gpu").exclusive(), order, "timed"))
        timer.start()
        time.sleep(0.05)
        started = time.monotonic()
        use(Lease(tmp_path, "gpu").shared(), order, "checked")
        assert time.monotonic() - started < 2.0
        assert order == ["checked"]
    timer.join(timeout=5)
    assert order == ["checked", "timed"]


def test_nobody_waits_at_a_closed_door_while_somebody_inside_is_late(tmp_path, monkeypatch):
    import threading
    import time

    from kernelzero.keck.gpu import lease

    monkeypatch.setattr(lease, "_LATE_S", 0.02)
    order, waits = [], []
    with lease.Lease(tmp_path, "gpu").shared():
        time.sleep(0.2)
        timer = threading.Thread(target=lambda: use(lease.Lease(tmp_path, "gpu").exclusive(), order, "timed"))
        timer.start()
        for _ in range(20):
            started = time.monotonic()
            use(lease.Lease(tmp_path, "gpu").shared(), order, "checked")
            waits.append(time.monotonic() - started)
            time.sleep(0.02)
        assert order == ["checked"] * 20
    timer.join(timeout=5)
    assert order[-1] == "timed"
    assert max(waits) < 0.2
    with lease.Lease(tmp_path, "gpu").exclusive():
        pass


def use(lease, order, what):
    with lease:
        order.append(what)


def test_the_share_of_the_time_that_is_the_candidates_own():
    from kernelzero.keck.gpu.provenance import share_of

    assert share_of([("mine", 7, 300), ("gemm", 7, 100), ("spin_kernel", 7, 10**9)], {"mine"}) == 0.75
    assert share_of([], {"mine"}) is None


def test_devices_that_are_not_there():
    from kernelzero.errors import UsageError
    from kernelzero.keck import open_keck

    for device in ("cuda:x", "tpu", "gpu"):
        with pytest.raises(UsageError, match="Keck judges on cpu, cuda or cuda:N"):
            open_keck(device)
