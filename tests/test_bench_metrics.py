"""Metrics on plain numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelzero.bench.metrics import (
    MixedError,
    bootstrap_interval,
    compare,
    fast_p_at_k,
    geometric_mean,
    pass_at_k,
    rate_interval,
    summarise,
    wilson_interval,
)
from kernelzero.records import Attempt, Basis, Candidate, Completion, Finish, Status, Timing, Verdict

counts = st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def attempt(task="t", status=Status.CORRECT, speedup=2.0, device="cpu", tokens=10, basis=Basis.MODELLED, timed=True):
    timing = Timing(basis, speedup, 1.0, speedup, speedup, speedup) if status is Status.CORRECT and timed else None
    verdict = Verdict(status, "because", device, timing=timing, timed=timed)
    return Attempt(task, Completion("text", tokens, Finish.STOP), Candidate("source"), verdict)


def no_code(task="t", finish=Finish.STOP):
    verdict = Verdict(Status.COMPILE_ERROR, "no code", "not judged")
    return Attempt(task, Completion("text", 10, finish), None, verdict)


@given(counts)
def test_pass_at_k_is_the_share_of_subsets_with_a_success(count):
    n, c = count
    n, c = min(n, 8), min(c, 8, n)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(counts)
def test_pass_at_k_never_falls_with_k(count):
    n, c = count
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values == sorted(values) and values[0] == pytest.approx(c / n) and values[-1] == float(c > 0)


@given(counts, st.integers(1, 5))
def test_a_missing_sample_is_a_failure(count, missing):
    n, c = count
    assert pass_at_k(n + missing, c, 1) <= pass_at_k(n, c, 1)


@pytest.mark.parametrize("n, c, k", [(5, 6, 1), (5, 1, 6), (5, 1, 0), (0, 0, 1), (5, -1, 1)])
def test_pass_at_k_refuses_nonsense(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=10), st.floats(0.1, 10))
def test_fast_p_never_exceeds_pass(speedups, p):
    assert fast_p_at_k(10, speedups, 1, p) <= pass_at_k(10, len(speedups), 1)


@pytest.mark.parametrize("wrong", [None, 0.0, float("inf"), float("nan"), -1.0])
def test_fast_p_takes_no_missing_speedup_for_zero(wrong):
    with pytest.raises(ValueError):
        fast_p_at_k(3, [2.0, wrong], 1)


def test_fast_p_is_strictly_more_than_p():
    assert fast_p_at_k(4, [1.0, 1.5], 1, p=1.0) == 0.25


@given(counts)
def test_wilson_holds_the_rate(count):
    n, c = count
    low, high = wilson_interval(c, n)
    assert 0 <= low <= c / n <= high <= 1 and high - low > 0


def test_wilson_known_value():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_bootstrap_is_deterministic_and_inside_the_values(values):
    low, high = bootstrap_interval(values)
    assert bootstrap_interval(values) == (low, high)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_certainty_is_never_claimed():
    assert bootstrap_interval([0.5]) is None
    low, high = rate_interval([0.0] * 10)
    assert low == 0 and 0.2 < high < 0.35


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError):
        geometric_mean([])


def test_summary_counts_the_missing_and_the_cut_off():
    names = {"a": "single_a", "b": "single_b", "c": "single_c"}
    attempts = [attempt("a"), attempt("a", Status.INCORRECT), attempt("b", speedup=0.5), no_code("b", Finish.LENGTH)]
    summary = summarise(attempts, n=2, names=names)
    assert summary["pass_at_k"]["pass@1"]["value"] == pytest.approx(1 / 3)
    assert summary["pass_at_k"]["pass@2"]["value"] == pytest.approx(2 / 3)
    assert summary["fast_1_at_1"]["value"] == pytest.approx(1 / 6)
    assert summary["speedup"]["value"] == pytest.approx(1.0) and summary["speedup"]["tasks"] == 2
    assert summary["failures"] == {"incorrect": 1, "missing": 2, "truncated": 1}
    assert summary["missing"] == 2 and summary["device"] == "cpu" and summary["basis"] == "modelled"
    assert [row["name"] for row in summary["per_task"]] == list(names.values())


@pytest.mark.parametrize("status, word", [(Status.INFRA_ERROR, "infrastructure"), (Status.UNSUPPORTED, "unsupported")])
def test_no_number_without_all_verdicts(status, word):
    summary = summarise([attempt(), attempt(status=status)], n=2)
    assert summary["pass_at_k"] is None and summary["fast_1_at_1"] is None
    assert "1 of 2 samples" in summary["unavailable"] and word in summary["unavailable"]


def test_untimed_is_left_out_with_a_count():
    summary = summarise([attempt(), attempt(timed=False), attempt(status=Status.INCORRECT)], n=3)
    assert summary["untimed_correct"] == 1
    assert summary["fast_1_at_1"]["value"] == pytest.approx(1 / 2)
    assert summarise([attempt(timed=False)], n=1)["fast_1_at_1"] is None


def test_an_interval_that_holds_1_is_not_faster():
    timing = Timing(Basis.MEASURED, 1.1, 1.0, 1.1, 0.9, 1.3)
    unsure = Attempt(
        "t", Completion("", 1, Finish.STOP), Candidate("s"), Verdict(Status.CORRECT, "ok", "gpu", timing=timing)
    )
    assert summarise([unsure], n=1)["fast_1_at_1"]["value"] == 0


@pytest.mark.parametrize("other", [{"device": "gpu"}, {"basis": Basis.MEASURED}])
def test_devices_and_bases_never_mix(other):
    with pytest.raises(MixedError):
        summarise([attempt(), attempt(**other)], n=2)
    with pytest.raises(MixedError):
        compare(summarise([attempt()], n=1), summarise([attempt(**other)], n=1))


def test_an_answer_without_code_has_no_device():
    assert summarise([attempt(), no_code()], n=2)["device"] == "cpu"


def test_too_many_samples_are_refused():
    with pytest.raises(ValueError, match="more than n"):
        summarise([attempt(), attempt()], n=1)


def passes(solved: int, tasks: int = 20, speedup: float = 2.0):
    status = [Status.CORRECT if i < solved else Status.INCORRECT for i in range(tasks)]
    return summarise([attempt(f"t{i}", s, speedup=speedup) for i, s in enumerate(status)], n=1)


def test_compare_tells_change_from_noise():
    assert compare(passes(2), passes(16))["pass@1"]["beyond_noise"]
    assert not compare(passes(9), passes(10))["pass@1"]["beyond_noise"]
    assert not compare(passes(9), passes(9))["pass@1"]["beyond_noise"]
    assert compare(passes(0), passes(20))["pass@1"]["beyond_noise"]
    assert not compare(passes(0, 2), passes(2, 2))["pass@1"]["beyond_noise"]
    ratio = compare(passes(20), passes(20, speedup=4.0))["speedup_ratio"]
    assert ratio["value"] == pytest.approx(2.0) and ratio["beyond_noise"]


def test_compare_wants_the_same_tasks():
    with pytest.raises(MixedError, match="different tasks"):
        compare(passes(2, 10), passes(2, 11))
