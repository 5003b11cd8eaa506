"""Whether a drafted module is worth being a task: it is run, and every call of it has to matter.

Finite; neither close to zero nor to a constant; other inputs give another output, each input by itself; float32 agrees
with float64, on unusual inputs too, so that an honest kernel is not refused for its rounding; noise in the place of any
call, or the call left out, changes the output. The source is executed here: it is our own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from kernelzero.proposer.composer.draft import Draft, Node
from kernelzero.proposer.composer.text import render

_LEAST, _SPREAD, _MOVED = 0.02, 0.05, 0.02
"""Root mean square of an output, at least; and, as shares of it, its spread, and what a change has to change."""
_ROUNDING = 1e-3
_MASK = 0.02
"""Share of a mask that has each of the two values, at least."""
_GAP = 1e-5
"""Distance of the largest element of a row from the next one, where an index tells which it is."""
_SEEDS = 3

See = Callable[[int, Any], Any]


def flaw(draft: Draft, everywhere: bool = False) -> str:
    """What is wrong with the module, "" if nothing. Torch's generator is left as it was.

    Args:
        everywhere: whether each eighth of each input has to change the output by itself.
    """
    import torch

    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small, and there may be many composers
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Trial(draft).flaw(everywhere)
    except RuntimeError as error:
        # Some operators look at values, and rounding takes a share of one a little above it.
        return "refuses an input of its own: " + " ".join(str(error).split())[:200]
    finally:
        torch.set_rng_state(state)
        torch.set_num_threads(threads)


class _Trial:
    def __init__(self, draft: Draft) -> None:
        import torch

        self.draft = draft
        self._seen: dict[int, Any] = {}
        """Values of the run in hand, by their numbers; for indices."""
        self.see: See = lambda place, value: value
        self.restricted = any(word in leaf.fill for leaf in draft.leaves for word in ("rand(", "softmax(", "randint("))
        """Whether some input may not be any number: then not all unusual inputs have an answer."""
        source = render(draft, wrap="_see")
        torch.default_generator.manual_seed(0)
        self.model, namespace = self._made(source)
        self.inputs = [namespace["get_inputs"]() for _ in range(_SEEDS)]
        self.exact, _ = self._made(source.replace(".float()", ".double()"))
        self.exact.load_state_dict(self.model.state_dict())
        self.exact.double()

    def _made(self, source: str) -> tuple[Any, dict[str, Any]]:
        namespace: dict[str, Any] = {"__name__": "kernelzero_module", "_see": lambda k, v: self.see(k, v)}
        exec(compile(source, "<module>", "exec"), namespace)
        return namespace["Model"](*namespace["get_init_inputs"]()), namespace

    def _run(self, inputs: list[Any], see: See | None = None, model: Any = None) -> list[Any]:
        self.see = see or (lambda place, value: value)
        output = (model or self.model)(*inputs)
        return list(output) if isinstance(output, tuple) else [output]

    def flaw(self, everywhere: bool) -> str:
        values: list[dict[int, Any]] = [{} for _ in self.inputs]
        outputs = [self._run(given, _keeper(seen)) for given, seen in zip(self.inputs, values, strict=True)]
        return (
            self._flaw_of_calls(values)
            or self._flaw_of_outputs(outputs)
            or self._flaw_of_inputs(outputs[0])
            or (self._flaw_of_parts(outputs[0]) if everywhere else "")
            or self._flaw_of_rounding()
            or self._useless(outputs[0], values[0])
        )

    def _flaw_of_calls(self, values: list[dict[int, Any]]) -> str:
        for place, node in enumerate(self.draft.nodes):
            if node.value.dtype == "tuple":
                continue
            seen = [v[place] for v in values]
            expected = tuple(s.small for s in node.value.shape)
            if tuple(seen[0].shape) != expected:
                return f"the composer took {node.text} to give {expected}, it gives {tuple(seen[0].shape)}"
            reason = _flaw_of_mask(seen) if not seen[0].dtype.is_floating_point else _flaw_of_values(seen)
            if reason:
                return f"{node.text}: {reason}"
        return ""

    def _flaw_of_outputs(self, outputs: list[list[Any]]) -> str:
        for number in range(len(outputs[0])):
            seen = [found[number] for found in outputs]
            if not seen[0].dtype.is_floating_point:
                if float((seen[0] != seen[1]).float().mean()) < 0.4:
                    return "close to a constant index"
                continue
            size = _size(seen[0])
            if size < _LEAST:
                return "close to zero"
            if seen[0].numel() > 1 and float(seen[0].std()) < _SPREAD * size:
                return "close to a constant"
            if min(_size(seen[0] - seen[1]), _size(seen[1] - seen[2])) < _SPREAD * size * (1 if seen[0].dim() else 0.4):
                return "nearly the same for other inputs"
            first = self.inputs[0][0]
            if first.shape == seen[0].shape and _size(seen[0] - first) < _SPREAD * size:
                return "close to the input"
        return ""

    def _flaw_of_inputs(self, output: list[Any]) -> str:
        for number in range(len(self.inputs[0])):
            changed = list(self.inputs[0])
            changed[number] = self.inputs[1][number]
            if not _differs(self._run(changed), output):
                return f"input {number} has hardly an effect"
        return ""

    def _flaw_of_parts(self, output: list[Any]) -> str:
        """Keck redraws a part of each input, too: a module that looks at few elements is not a good task."""
        import torch

        for number, value in enumerate(self.inputs[0]):
            if not value.dtype.is_floating_point:
                continue
            part = max(1, value.numel() // 8)
            for start in range(0, value.numel() - part + 1, part):
                mixed = value.flatten().clone()
                mixed[start : start + part] = self.inputs[1][number].flatten()[start : start + part]
                if torch.equal(mixed, value.flatten()):
                    continue
                given = [*self.inputs[0][:number], mixed.view(value.shape), *self.inputs[0][number + 1 :]]
                if all(torch.equal(a, b) for a, b in zip(self._run(given), output, strict=True)):
                    return f"a part of input {number} has no effect"
        return ""

    def _flaw_of_rounding(self) -> str:
        import torch

        changes: list[tuple[str, Callable[[Any], Any]]] = [
            ("", lambda t: t), ("times 100", lambda t: t * 100.0), ("times 0.001", lambda t: t * 1e-3),
            ("minus 10", lambda t: t - 10.0), ("minus 100", lambda t: t - 100.0),
            ("in halves", lambda t: torch.round(t * 2) / 2),
        ]  # fmt: skip
        usual = [_size(v) for v in self._run(self.inputs[0])]
        for label, change in changes:
            given = [change(x) if x.dtype.is_floating_point else x for x in self.inputs[0]]
            try:
                single = self._run(given, None if label == "in halves" else self._clear)
                double = self._run([x.double() if x.dtype.is_floating_point else x for x in given], model=self.exact)
            except _Unclear:
                return "an index that rounding decides"
            except (RuntimeError, ValueError):  # such inputs are not taken, by Keck neither
                if not label:
                    raise
                continue
            reason = _disagreement(single, double, usual, scaled=bool(label))
            if reason == "not finite" and label and (self.restricted or label != "times 100"):
                continue
            if reason and not (label == "in halves" and any(not v.dtype.is_floating_point for v in single)):
                return f"{reason} on inputs {label}".removesuffix(" on inputs ")
        return ""

    def _clear(self, place: int, value: Any) -> Any:
        """Refuse an index of an element that is hardly larger than the next one."""
        node = self.draft.nodes[place]
        number = next(iter(node.operands.values())).number
        if "torch.arg" in node.text and number in self._seen:
            rows = self._seen[number].movedim(int(node.params["dim"]), -1)
            best = (rows if "argmax" in node.text else -rows).topk(2, dim=-1).values
            gap = (best[..., 0] - best[..., 1]) / (1.0 + best[..., 0].abs())
            if float(gap.min()) < _GAP and "exact" not in next(iter(node.operands.values())).facts:
                raise _Unclear
        self._seen[node.value.number] = value
        return value

    def _useless(self, output: list[Any], values: dict[int, Any]) -> str:
        for place, node in enumerate(self.draft.nodes):
            if node.value.dtype == "tuple":
                continue
            if not self._matters(place, _noise(values[place]), output):
                return f"without effect: {node.text}"
            if self._left_out(place, node, output, values):
                return f"could be left out: {node.text}"
        return ""

    def _left_out(self, place: int, node: Node, output: list[Any], values: dict[int, Any]) -> bool:
        """Whether an operand in the place of the call gives nearly the same output."""
        numbers = {n.value.number: k for k, n in enumerate(self.draft.nodes)}
        inputs = [leaf.value.number for leaf in self.draft.leaves if leaf.kind == "input"]
        for operand in node.operands.values():
            if operand.shape != node.value.shape or operand.dtype != node.value.dtype:
                continue
            known = operand.number in numbers or operand.number in inputs
            if not known:
                continue
            value = values[numbers[operand.number]] if operand.number in numbers else None
            value = self.inputs[0][inputs.index(operand.number)] if value is None else value
            if not self._matters(place, value.clone(), output):
                return True
        return False

    def _matters(self, place: int, value: Any, output: list[Any]) -> bool:
        try:
            return _differs(self._run(self.inputs[0], _instead(place, value)), output)
        except RuntimeError:  # a value that what follows does not take
            return True


class _Unclear(Exception):
    pass


def _keeper(seen: dict[int, Any]) -> See:
    def keep(place: int, value: Any) -> Any:
        seen[place] = value.clone() if hasattr(value, "clone") else value
        return value

    return keep


def _instead(place: int, other: Any) -> See:
    return lambda at, value: other if at == place else value


def _size(value: Any) -> float:
    """Root mean square."""
    return float(value.double().square().mean().sqrt())


def _flaw_of_values(seen: list[Any]) -> str:
    if not all(bool(v.isfinite().all()) for v in seen):
        return "not finite"
    size = _size(seen[0])
    if size < 1e-3:
        return "close to zero"
    if seen[0].numel() > 1 and float(seen[0].std()) < 1e-2 * size:
        return "close to a constant"
    if _size(seen[0] - seen[1]) < 1e-2 * size:
        return "nearly the same for other inputs"
    return ""


def _flaw_of_mask(seen: list[Any]) -> str:
    import torch

    every = torch.cat([v.flatten() for v in seen])
    most = float((every == every.mode().values).float().mean())
    return "close to a constant" if most > 1.0 - _MASK else ""


def _disagreement(single: list[Any], double: list[Any], usual: list[float], scaled: bool) -> str:
    """Whether float32 and float64 differ by more than a tenth of what Keck lets pass."""
    for a, b, size in zip(single, double, usual, strict=True):
        if not a.dtype.is_floating_point:
            if not bool((a == b).all()):
                return "an index that rounding decides"
            continue
        if not bool(a.isfinite().all()):
            return "not finite"
        scale = _size(b) if scaled else min(1.0, _size(b))
        if scaled and scale < 1e-2 * size:
            continue
        if float(((a.double() - b).abs() / (scale + b.abs() + 1e-12)).max()) > _ROUNDING:
            return "sensitive to rounding"
    return ""


def _noise(value: Any) -> Any:
    """Other values of the same kind and scale."""
    import torch

    generator = torch.Generator().manual_seed(5)
    if value.dtype is torch.bool:
        return torch.randint(0, 2, value.shape, generator=generator).bool()
    if not value.dtype.is_floating_point:
        return value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(value.shape)
    if value.numel() == 1:
        return value * 1.5 + 0.5
    noise = torch.randn(value.shape, generator=generator).to(value.dtype)
    return noise * (value.std(correction=0) + 0.1) + value.mean()


def _differs(outputs: list[Any], references: list[Any]) -> bool:
    """Whether some output is another one."""
    for output, reference in zip(outputs, references, strict=True):
        if not reference.dtype.is_floating_point:
            if float((output != reference).float().mean()) > 0.05:
                return True
        elif not bool(output.isfinite().all()) or _size(output - reference) > _MOVED * _size(reference):
            return True
    return False
