"""Whether a composed module is worth being a task: every line matters, and the numbers are well behaved.

Checked by running the module: finite, also on inputs a hundred times as large; neither close to zero nor to a constant,
so that no trivial answer passes at atol = rtol = 1e-2; float32 agrees with float64, so that an honest kernel is not
refused for rounding; leaving out any line changes the output. The source is executed here: it is our own.
"""

from __future__ import annotations

from typing import Any

from kernelzero.proposer.composer.chain import Chain

LARGE = 100.0
"""Factor of the large inputs."""
_MIN_SIZE, _MIN_SPREAD, _MIN_CHANGE = 0.1, 0.05, 0.05
_MAX_ROUNDING = 1e-3
_MIN_GAP = 1e-5
_MIN_MOVED = 0.4
"""Share of rows whose index is another one for other inputs."""


def flaw(chain: Chain) -> str:
    """What is wrong with the module, "" if nothing."""
    import torch

    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            return _flaw(chain)
    finally:
        torch.set_rng_state(state)


def _flaw(chain: Chain) -> str:
    import torch

    torch.default_generator.manual_seed(0)
    model, namespace = _model(chain.render())
    inputs, others = namespace["get_inputs"](), namespace["get_inputs"]()
    weights = model.state_dict()
    output = model(*inputs)
    if not output.dtype.is_floating_point:
        return _flaw_of_indices(chain, weights, output, inputs, others) or _useless_line(chain, inputs, weights, output)
    return (
        _flaw_of_values(output, model(*others))
        or _flaw_of_rounding(model, inputs, output)
        or _useless_line(chain, inputs, weights, output)
    )


def _model(source: str) -> tuple[Any, dict[str, Any]]:
    namespace: dict[str, Any] = {"__name__": "kernelzero_module"}
    exec(compile(source, "<module>", "exec"), namespace)
    return namespace["Model"](*namespace["get_init_inputs"]()), namespace


def _flaw_of_indices(chain: Chain, weights: Any, output: Any, *samples: list[Any]) -> str:
    """Indices are compared exactly, so the winner of each row has to win clearly, on large inputs too."""
    full, _ = _model(chain.render())
    full.load_state_dict(weights)
    if float((full(*samples[1]) != output).float().mean()) < _MIN_MOVED:
        return "close to a constant index"
    model, _ = _model(chain.render(without=len(chain.lines) - 1))
    model.load_state_dict(weights)
    sign = -1.0 if "argmin" in chain.lines[-1].text else 1.0
    for inputs in (*samples, *([LARGE * x for x in sample] for sample in samples)):
        best = (sign * model(*inputs)).topk(2, dim=1).values
        gap = (best[:, 0] - best[:, 1]) / (1.0 + best[:, 0].abs())
        if not float(gap.min()) > _MIN_GAP:
            return "an index that rounding decides"
    return ""


def _flaw_of_values(output: Any, other: Any) -> str:
    if not output.isfinite().all():
        return "not finite"
    size = float(output.square().mean().sqrt())
    mean = float(output.mean())
    if size < _MIN_SIZE:
        return "close to zero"
    spread = max(_MIN_SPREAD, _MIN_SPREAD * abs(mean))
    if float(output.std()) < spread or float((output - other).square().mean().sqrt()) < spread:
        return "close to a constant"
    return ""


def _flaw_of_rounding(model: Any, inputs: list[Any], output: Any) -> str:
    large = [LARGE * x for x in inputs]
    large_output = model(*large)
    if not large_output.isfinite().all():
        return "not finite on large inputs"
    model.double()
    for given, single in ((inputs, output), (large, large_output)):
        exact = model(*[x.double() for x in given])
        scale = 1.0 + exact.abs()
        if float(((single - exact) / scale).abs().max()) > _MAX_ROUNDING:
            return "sensitive to rounding"
    return ""


def _useless_line(chain: Chain, inputs: list[Any], weights: Any, output: Any) -> str:
    for i, line in enumerate(chain.lines):
        if line.keeps_shape and len(chain.lines) > 1:
            model, _ = _model(chain.render(without=i))
            model.load_state_dict(weights)
            if not _differs(model(*inputs), output):
                return f"without effect: {line.text}"
    return ""


def _differs(output: Any, reference: Any) -> bool:
    if not reference.dtype.is_floating_point:
        return float((output != reference).float().mean()) > _MIN_CHANGE
    if not output.isfinite().all():
        return True
    change = (output - reference).square().mean().sqrt()
    return float(change) > _MIN_CHANGE * float(reference.square().mean().sqrt())
