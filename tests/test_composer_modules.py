"""The composer of whole modules: what it promises of each, its styles, its sizes, its sampler."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections import Counter

import pytest
import torch

from kernelzero.proposer import gates
from kernelzero.proposer.composer import ALL_APIS, SUPPORTED_APIS, CannotCompose, compose, compose_module, draw
from kernelzero.proposer.composer.draft import DoesNotFit, Draft
from kernelzero.proposer.composer.plan import build
from kernelzero.proposer.composer.sizes import Size, fixed
from kernelzero.proposer.composer.text import Style, render
from kernelzero.proposer.composer.trial import flaw
from kernelzero.records import ApiSet

DRAWS = 60
ROWS, COLUMNS = Size(8, 1024), Size(16, 512)


def _loaded(source):
    namespace = {"__name__": "module"}
    exec(source, namespace)
    return namespace


def _output(source, seed=0):
    torch.manual_seed(seed)
    namespace = _loaded(source)
    model = namespace["Model"](*namespace["get_init_inputs"]())
    with torch.no_grad():
        output = model(*namespace["get_inputs"]())
    return output if isinstance(output, tuple) else (output,)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def drawn():
    """(set, task or None) of some draws."""
    found = []
    for number in range(DRAWS):
        api_set = draw(3, number)
        try:
            found.append((api_set, compose_module(api_set, number)))
        except CannotCompose:
            found.append((api_set, None))
    return found


def test_it_knows_most_of_the_catalogue():
    from kernelzero.apis import load_catalogue

    assert len(ALL_APIS) >= 400
    assert set(ALL_APIS) <= set(load_catalogue().apis)
    assert set(SUPPORTED_APIS) <= set(ALL_APIS)


@pytest.mark.parametrize("part", range(4))
def test_every_api_alone(part):
    for api in ALL_APIS[part::4]:
        assert compose_module(ApiSet((api,)), 1).apis == (api,)


def test_nearly_all_draws_can_be_composed(drawn):
    assert sum(task is None for _, task in drawn) <= 2


def test_modules_pass_the_gates_of_text_and_run(drawn):
    for api_set, task in drawn:
        if task is not None:
            assert gates.check_text(task.source, api_set) is None
            assert max(map(len, task.source.splitlines())) < 400
            for value in _output(task.source):
                assert bool(value.isfinite().all())


def test_they_are_of_many_shapes_and_styles(drawn):
    sources = [task.source for _, task in drawn if task is not None]
    shares = {
        "layers": sum("def __init__" in s for s in sources),
        "arguments": sum("return []" not in s for s in sources),
        "several inputs": sum(len(re.search(r"forward\((.*)\)", s)[1].split(",")) > 2 for s in sources),
        "constants": sum("\nbatch_size = " in s or "\nchannels = " in s for s in sources),
        "functional": sum("F." in s for s in sources),
        "annotations": sum("torch.Tensor" in s for s in sources),
    }
    assert all(share > len(sources) // 12 for share in shares.values()), shares
    assert {value.dim() for s in sources for value in _output(s)} >= {0, 1, 2, 3, 4}


def test_the_same_set_and_seed_give_the_same_text_whatever_the_global_generators_say():
    api_set = ApiSet(("nn.Conv2d", "torch.amax", "torch.add"))
    first = compose_module(api_set, 7).source
    torch.manual_seed(123)
    random.seed(5)
    state = torch.get_rng_state()
    assert compose_module(api_set, 7).source == first
    assert torch.equal(torch.get_rng_state(), state)
    assert len({compose_module(api_set, seed).source for seed in range(12)}) == 12


def test_a_gpu_s_sizes_are_the_same_module_with_other_numbers(drawn):
    larger = 0
    for number, (api_set, task) in enumerate(drawn[:30]):
        if task is None:
            continue
        large = compose_module(api_set, number, "gpu").source
        assert re.sub(r"\d+", "N", large) == re.sub(r"\d+", "N", task.source)
        with torch.device("meta"):
            if "gaussian_nll_loss" not in large and "GaussianNLL" not in large:  # looks at values
                _output(large)
            larger += sum(v.numel() for v in _loaded(large)["get_inputs"]()) > 1 << 16
    assert larger > 18


def test_all_styles_compute_the_same():
    rng = random.Random(5)
    sets = [("nn.Linear", "torch.relu", "torch.mul"), ("nn.Conv2d", "nn.BatchNorm2d"), ("torch.chunk", "torch.exp"),
            ("torch.cat", "nn.Softmax", "torch.sub"), ("nn.Embedding", "torch.matmul")]  # fmt: skip
    styles = [Style(bool(k & 1), bool(k & 2), bool(k & 4), bool(k & 8), bool(k & 1), bool(k & 2)) for k in range(16)]
    done = 0
    while done < 12:
        try:
            draft = build(sets[done % len(sets)], rng)
        except DoesNotFit:
            continue
        texts = {render(draft, style) for style in styles}
        first, *others = [_output(text) for text in texts]
        assert len(texts) > 3 and all(torch.equal(a, b) for o in others for a, b in zip(o, first, strict=True))
        done += 1


def test_unknown_apis_are_named():
    with pytest.raises(CannotCompose, match=r"torch\.svd"):
        compose_module(ApiSet(("torch.svd", "torch.relu")), 0)


def _chain(*texts, shape=(ROWS, COLUMNS)):
    """A draft of calls one after another; "→" before a text: what it gives has one dimension less, "·": none."""
    draft = Draft(random.Random(0))
    x = draft.input(shape)
    for text in texts:
        given = {"→": x.shape[:-1], "·": ()}.get(text[0], x.shape)
        x = draft.call(text.lstrip("→·"), {"x": x}, given)
    draft.outputs = [x]
    return draft


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("torch.softmax({x}, dim=1)", "→torch.sum({x}, dim=1)"), "constant"),
        (("F.layer_norm({x}, ({x}.shape[-1],))", "→torch.mean({x}, dim=-1)"), "zero"),
        (("torch.exp(torch.tanh({x}))", "torch.relu({x})"), "left out"),
        (("-{x}.abs()", "torch.relu({x})"), "zero"),
        (("{x} + 1.0", "torch.softmax({x}, dim=1)"), "left out"),
        (("torch.log({x})",), "not finite"),
        (("torch.exp({x})",), "not finite on inputs times 100"),
        (("{x} * 0.0 + 1.0",), "constant"),
        (("torch.zeros_like({x})",), "zero"),
        (("torch.ones_like({x})", "·F.mse_loss({x}, torch.zeros_like({x}))"), "constant"),
        (("{x} * 1.0",), "input"),
        (("torch.sin({x} * 10000.0)",), "sensitive to rounding"),
        (("·F.binary_cross_entropy({x}, torch.sigmoid({x}))",), "refuses an input of its own"),
    ],
)
def test_degenerate_drafts_are_refused(texts, reason):
    assert reason in flaw(_chain(*texts))


def test_a_softmax_over_one_element_is_refused():
    assert "constant" in flaw(_chain("torch.softmax({x}, dim=1)", shape=(ROWS, fixed(1))))


def test_an_input_without_effect_is_refused():
    draft = _chain("torch.tanh({x})")
    draft.input((ROWS, COLUMNS))
    assert "input 1" in flaw(draft)


def test_a_sound_draft_has_no_flaw():
    assert flaw(_chain("torch.tanh({x})", "torch.softmax({x}, dim=1)")) == ""


def test_draws_cover_every_api_evenly():
    sets = [draw(1, number) for number in range(3 * len(ALL_APIS))]
    assert sets == [draw(1, number) for number in range(3 * len(ALL_APIS))] != [draw(2, n) for n in range(len(sets))]
    counts = Counter(api for s in sets for api in s.apis)
    assert set(counts) == set(ALL_APIS) and min(counts.values()) >= 3 and max(counts.values()) <= 12
    assert {len(s.apis) for s in sets} == {1, 2, 3, 4}


def test_the_dialect_of_the_nano_models_is_what_it_was():
    rng = random.Random("dialect")
    digest = hashlib.sha256()
    for seed in range(40):
        try:
            digest.update(compose(ApiSet(tuple(rng.sample(SUPPORTED_APIS, 2 + seed % 2))), seed).source.encode())
        except CannotCompose:
            digest.update(b"-")
    assert len(SUPPORTED_APIS) == 82 and digest.hexdigest() == DIALECT


DIALECT = "ba1f89aaaffa11388489db89b81565819715a5b0288a432100aab1a4b3f3734a"


@pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
def test_keck_takes_modules_as_tasks_and_the_rulebook_writes_them(drawn):
    from kernelzero.coldstart.rulebook import CannotWrite, write_kernel
    from kernelzero.keck import open_keck
    from kernelzero.records import Candidate, Status

    chosen = [(api_set, task) for api_set, task in drawn if task is not None][:6]
    jobs = []
    for _, task in chosen:
        try:
            jobs.append((task, Candidate(write_kernel(task))))
        except CannotWrite:
            continue
    with open_keck("cpu", workers=1) as keck:
        reports = dict(gates.check(keck, [(api_set, task.source) for api_set, task in chosen]))
        verdicts = dict(keck.judge(jobs[:4], timed=False))
    assert sum(report.valid is True for report in reports.values()) >= 5, reports
    assert sum(verdict.status is Status.CORRECT for verdict in verdicts.values()) >= 3, verdicts
