"""The child's side on a GPU: the rules of `forward` with real kernels, and bursts of calls for the clock.

What the CPU sees in the interpreter is seen here from outside: Triton's launches by a subclass of its kernels, all
kernels by CUPTI, work that goes on after `forward` by comparing the output again when the device is idle.
Not covered: the judge's decisions (timing.py), and numerical modes of tensor cores.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.runtime.jit as jit
from torch.utils import cpp_extension
from triton.errors import TritonError

from kernelzero.errors import InfrastructureError
from kernelzero.keck import guard, produced, wire
from kernelzero.keck.build import bare, host_library, inprocess, parse_request, reduced_precision
from kernelzero.keck.gpu.cache import cache_folder
from kernelzero.keck.gpu.cudart import CudaError, CudaRuntime, wait_without_spinning
from kernelzero.keck.gpu.fence import Fence, MappedMemory
from kernelzero.keck.gpu.mailbox import ChildChannel
from kernelzero.keck.gpu.trace import KernelTrace
from kernelzero.keck.interpreter import front_end_message
from kernelzero.keck.ledger import ACTIVE
from kernelzero.keck.values import same_values, tensors

_SIDE_DELAY_CYCLES = 2_000_000
"""About a millisecond: work on a stream of the candidate's own starts this late in checked calls."""
_KEPT_BYTES = 256 << 20
_EARLY = 2
"""Most outputs of a burst that are also copied right after their call, to see whether they were finished."""
_FLUSH_BYTES = 192 << 20
"""More than three times the L2 cache of any GPU so far."""
_WORK_BUFFERS, _WORK_BYTES = 6, 1 << 30
"""Copies of the inputs that timed calls take turns in: where memory lies changes a kernel's time by some per cent."""
_CYCLES_PER_MS = 1_800_000
_COMPILED_S = 0.02
"""A launch that took so long has compiled."""
_MEMORY_SHARE = 0.3
"""Of the GPU's memory, for what torch allocates in one child: who takes all that there is shall not starve others."""


class WatchedKernel(jit.JITFunction):
    """What `@triton.jit` makes in a child on a GPU: Triton's own, and a record of its launches."""

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Launch over `grid`; arguments as Triton takes them."""
        try:
            if ACTIVE.turn_due is not None and ACTIVE.in_forward:
                started = time.monotonic()
                super().run(*args, grid=grid, warmup=True, **kwargs)
                # Before anything runs; and again when something was compiled, whose time is not the kernels'.
                ACTIVE.take_turn(again=time.monotonic() - started > _COMPILED_S)
            compiled = super().run(*args, grid=grid, warmup=warmup or ACTIVE.blank, **kwargs)
        except TritonError as error:
            raise ACTIVE.compile_fault(f"kernel {self.fn.__name__}: {front_end_message(error)}") from None
        if compiled is not None:
            _look_at(self, compiled)
        if ACTIVE.in_forward and not warmup:
            _record_launch(self, (*args, *kwargs.values()))
        return compiled


def _watched_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a CUDA extension that leaves a record: what it was given and what it returned is its work."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if ACTIVE.in_forward:
            ACTIVE.take_turn()
        output = function(*args, **kwargs)
        if ACTIVE.blank:
            guard.blank(tensors((args, tuple(kwargs.values()), output)))
        if ACTIVE.in_forward:
            ACTIVE.kernel_launches += 1
            with torch._C.DisableTorchFunction():
                for tensor in tensors((args, tuple(kwargs.values()), output)):
                    produced.given(tensor)
        return output

    return call


class WatchedGraph(torch.cuda.CUDAGraph):
    """A CUDA graph that launches again what was launched while it was captured."""

    _launches: int
    _given: list[torch.Tensor]

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin; launches are recorded beside the graph."""
        self._launches, self._given = -ACTIVE.kernel_launches, []
        ACTIVE.capturing = self._given
        super().capture_begin(*args, **kwargs)

    def capture_end(self) -> None:
        """End."""
        super().capture_end()
        self._launches += ACTIVE.kernel_launches
        ACTIVE.capturing = None

    def replay(self) -> None:
        """Run all again; what the kernels were given then is their work of this call."""
        if not ACTIVE.blank:
            super().replay()
        if ACTIVE.in_forward:
            ACTIVE.kernel_launches += self._launches
            with torch._C.DisableTorchFunction():
                for tensor in self._given:
                    produced.mark(tensor)


@contextlib.contextmanager
def _bare_launch(values: Sequence[Any]) -> Iterator[None]:
    """Device code is launched with these arguments: tensors, or addresses of tensors, and numbers."""
    if ACTIVE.in_forward:
        ACTIVE.take_turn()
    yield
    with torch._C.DisableTorchFunction():
        addresses = [v for v in values if type(v) is int]
        tensors_given = [v for v in values if isinstance(v, torch.Tensor)]
        tensors_given += [t for t in ACTIVE.addresses if any(_holds(t.untyped_storage(), a) for a in addresses)]
        if ACTIVE.blank:
            guard.blank(tensors_given)
        if ACTIVE.in_forward:
            ACTIVE.kernel_launches += 1
            for tensor in tensors_given:
                produced.given(tensor)


def _holds(storage: Any, address: int) -> bool:
    return bool(storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes())


def _look_at(kernel: WatchedKernel, compiled: Any) -> None:
    """Each form of a kernel once, in timed calls too: its name, and whether it computes in 16 bits."""
    form = getattr(compiled, "hash", None) or id(compiled)
    if form in ACTIVE.forms:
        return
    ACTIVE.forms.add(form)
    ACTIVE.own_names.add(getattr(compiled, "name", kernel.fn.__name__))
    if reduced_precision(str(getattr(compiled, "asm", {}).get("ptx", ""))).sixteen:
        ACTIVE.narrowed(f"kernel {kernel.fn.__name__} computes in 16 bits")


def _record_launch(kernel: WatchedKernel, values: tuple[Any, ...]) -> None:
    if kernel.fn.__name__ not in ACTIVE.kernels:
        ACTIVE.kernels.append(kernel.fn.__name__)
    ACTIVE.kernel_launches += 1
    ACTIVE.meter.launches += 1
    with torch._C.DisableTorchFunction():
        for value in values:
            base = getattr(value, "base", value)
            if isinstance(base, torch.Tensor):
                produced.given(base)


class GpuRuntime:
    """One GPU, the first that this process sees."""

    on_gpu = True

    def __init__(self) -> None:
        self.cuda: CudaRuntime | None = None
        self.trace: KernelTrace | None = None
        self.mapped: MappedMemory | None = None
        self.host: Path | None = None
        """The extension that loads built libraries."""

    # --- before the fork, without touching the GPU ---

    def preload(self) -> None:
        """Load what children need. The process must not get a CUDA context: a fork would break it."""
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia import compiler
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver

        driver.set_active(CudaDriver())
        compiler.get_ptxas_version(90)
        triton.jit = jit.jit = _watched_jit  # type: ignore[assignment]
        torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = WatchedGraph  # type: ignore[misc, assignment]
        _warm(GPUTarget("cuda", 90, 32))
        with contextlib.suppress(InfrastructureError):
            self.host = host_library(cache_folder())
        if torch.cuda.is_initialized():
            raise CudaError("the process that children are forked from has a CUDA context")

    def channel(self, sock: socket.socket) -> wire.Channel:
        """The child's end of its connection to the judge."""
        assert self.cuda is not None
        return ChildChannel(sock, self.cuda)

    # --- in the child ---

    def start(self, connections: int) -> None:
        """Take the GPU, with this many hardware queues."""
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(connections)
        wire.use_device("cuda")
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # it was for the time before the fork
        wait_without_spinning()
        torch.cuda.init()
        torch.cuda.device_count()  # remembered now; later it would load a library, which a candidate may not
        torch.cuda.set_per_process_memory_fraction(_MEMORY_SHARE)
        torch.zeros(1, device="cuda")
        self.cuda, self.trace = CudaRuntime(), KernelTrace()
        with contextlib.suppress(CudaError):
            self.mapped = MappedMemory()

    def prepare(self, build: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Extensions that the candidate asks torch for are built by the judge."""
        bare.install(lambda spec: build(spec.to_json()), _bare_launch)
        if self.host is not None:
            inprocess.install(lambda spec: build(spec.to_json()), self.host, _watched_function)
        else:
            # No compiler, so no loader either: the judge, who is asked to build, says so.
            cpp_extension.load_inline = lambda *a, **k: build(parse_request("load_inline", a, k).to_json())
            cpp_extension.load = lambda *a, **k: build(parse_request("load", a, k).to_json())

    def seed(self, value: int) -> None:
        """The generators of the host and of the GPU."""
        torch.default_generator.manual_seed(value)
        torch.cuda.default_generators[0].manual_seed(value)

    @contextlib.contextmanager
    def hosted(self, is_candidate: bool) -> Iterator[None]:
        """Tensors are made on the GPU unless the code says otherwise."""
        with torch.device("cuda"), guard.GpuHostGuard() if is_candidate else contextlib.nullcontext():
            yield

    def forward(self, model: Any, inputs: list[Any], is_candidate: bool, reference_mode: Any) -> Any:
        """One call."""
        if not is_candidate:
            with torch.no_grad(), torch.device("cuda"), reference_mode:
                return model(*inputs)
        stream = torch.cuda.current_stream()
        with torch.device("cuda"), _delayed_side_streams(), guard.watched_forward(guard.GpuHostGuard()):
            output = guard.plain(model(*inputs))
        if torch.cuda.current_stream() != stream:
            raise ACTIVE.violate("forward leaves another stream current")
        return output

    def placed(self, values: list[Any]) -> list[Any]:
        """Modules that make tensors on the host by name get them moved."""
        return [_on_gpu(value) for value in values]

    def check_settled(self, output: Any) -> None:
        """The output as the current stream sees it now, and when all work of the process has ended, are the same."""
        if not ACTIVE.candidate:
            return
        leaves = [t for t in tensors(output) if t.is_cuda]
        early = [t.clone() for t in leaves]
        torch.cuda.synchronize()
        if any(not same_values(a, b) for a, b in zip(leaves, early, strict=True)):
            raise ACTIVE.violate("work goes on after forward has returned: a stream is not joined")
        if len(leaves) != len(tensors(output)):
            raise ACTIVE.violate("an output is on the host, not on the GPU")

    def fence(self, at_end: bool) -> Fence | None:
        """Memory of its own for each tensor of one call."""
        return Fence(self.mapped, at_end) if self.mapped is not None else None

    def memory_share(self) -> float:
        """What torch holds here of the GPU's memory."""
        try:
            return torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory
        except Exception:  # after a fault on the GPU
            return 0.0

    def start_trace(self) -> None:
        """Begin to record which kernels run."""
        assert self.trace is not None
        self.trace.start()

    def stop_trace(self) -> list[tuple[str, int, int]]:
        """(name, stream, nanoseconds) of the kernels that ran since; waits for the device."""
        assert self.trace is not None
        torch.cuda.synchronize()
        return [(kernel.name, kernel.stream, kernel.end_ns - kernel.start_ns) for kernel in self.trace.stop()]

    def undo(self) -> None:
        """Nothing was patched for running."""


class Burst:
    """Calls one after another without waiting, each with inputs that were never seen before.

    Args:
        model: what is timed; no guard is on, as none would be in use.
        pool: sets of inputs.
        plan: for each call the set, and the factor that its floating-point inputs are multiplied by.
        spin_ms: how long the GPU is kept busy first, so that all calls are queued before the first one starts, and no
            time between the events is the host's.
    """

    def __init__(self, model: Any, pool: list[list[Any]], plan: list[tuple[int, float]], spin_ms: float) -> None:
        self.outputs: dict[int, Any] = {}
        self.dry = False
        self._early: list[tuple[Any, list[torch.Tensor]]] = []
        stream = torch.cuda.current_stream()
        flush = _flush_buffer()
        work = [[_blank(value) for value in pool[0]] for _ in range(_work_buffers(pool[0]))]
        begin = [torch.cuda.Event(enable_timing=True) for _ in plan]
        end = [torch.cuda.Event(enable_timing=True) for _ in plan]
        spin = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        started = time.perf_counter()
        spin[0].record(stream)
        torch.cuda._sleep(int(spin_ms * _CYCLES_PER_MS))
        spin[1].record(stream)
        with torch.no_grad(), torch.device("cuda"):
            for call, (number, factor) in enumerate(plan):
                inputs = [_scaled(v, factor, w) for v, w in zip(pool[number], work[call % len(work)], strict=True)]
                flush.zero_()
                begin[call].record(stream)
                output = guard.plain(model(*inputs))
                end[call].record(stream)
                if torch.cuda.current_stream() != stream:
                    raise ACTIVE.violate("a timed call leaves another stream current")
                self.dry |= begin[call].query()  # the GPU got here before all of the call was queued
                self._keep(call, output)
                if len(self._early) < _EARLY and int.from_bytes(os.urandom(2), "little") * len(plan) < 1 << 16:
                    self._early.append((output, [t.clone() for t in tensors(output)]))
        self.queued_ms = (time.perf_counter() - started) * 1e3
        torch.cuda.synchronize()
        self.spun_ms = spin[0].elapsed_time(spin[1])
        self.times_ms = [a.elapsed_time(b) for a, b in zip(begin, end, strict=True)]
        before = [spin[1], *end[:-1]]
        self.between_ms = sum(a.elapsed_time(b) for a, b in zip(before, begin, strict=True))

    def check_settled(self) -> None:
        """Outputs are what they were right after their call; kernels of this comparison are no part of the burst."""
        pairs = [p for output, copies in self._early for p in zip(tensors(output), copies, strict=True)]
        if any(not same_values(now, then) for now, then in pairs):
            raise ACTIVE.violate("work goes on after a timed call has returned")

    def _keep(self, call: int, output: Any) -> None:
        """All outputs while there is room; then each with a chance, decided after the call."""
        size = sum(t.numel() * t.element_size() for t in tensors(output))
        room = max(1, _KEPT_BYTES // max(size, 1))
        if len(self.outputs) < room:
            self.outputs[call] = output
            return
        slot = int.from_bytes(os.urandom(4), "little") % (call + 1)
        if slot < room:
            del self.outputs[list(self.outputs)[slot]]
            self.outputs[call] = output


def _work_buffers(inputs: list[Any]) -> int:
    size = sum(t.numel() * t.element_size() for t in tensors(inputs))
    return max(2, min(_WORK_BUFFERS, _WORK_BYTES // max(size, 1)))


def scaled(inputs: list[Any], factor: float) -> list[Any]:
    """Inputs as a burst makes them of a set of the pool."""
    return [_scaled(value, factor, _blank(value)) for value in inputs]


_flush: torch.Tensor | None = None


def _flush_buffer() -> torch.Tensor:
    global _flush
    if _flush is None:
        _flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    return _flush


def _blank(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _scaled(value: Any, factor: float, work: Any) -> Any:
    """The value in `work`, times the factor where it is floating-point; what is no tensor as it is."""
    if work is None:
        return value
    return torch.mul(value, factor, out=work) if value.dtype.is_floating_point else work.copy_(value)


# --- kernels ---------------------------------------------------------------------------------------------------------


def _watched_jit(fn: Any = None, **options: Any) -> Any:
    """`triton.jit`: the same options, a kernel that is watched."""

    def decorate(function: Any) -> WatchedKernel:
        known = {k: v for k, v in options.items() if k in _JIT_OPTIONS}
        if ACTIVE.candidate:
            # A name that no library's kernel has, whatever the candidate calls it. (torch.compile, which references
            # may use, looks its kernels up by the names that it gave them.)
            known["repr"] = lambda _: f"{function.__name__}_{_TOKEN}"
        return WatchedKernel(function, **known)

    return decorate(fn) if fn is not None else decorate


_JIT_OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline",
                "launch_metadata")  # fmt: skip
_TOKEN = os.urandom(4).hex()


def _warm(target: Any) -> None:
    """Compile one kernel down to the GPU's code, so that children find compilers, dialects and caches loaded."""
    from triton.compiler.compiler import ASTSource

    from kernelzero.keck import warm_kernel

    kernel = jit.JITFunction(warm_kernel.scale)
    triton.compile(ASTSource(kernel, warm_kernel.SIGNATURE, warm_kernel.CONSTANTS, {}), target=target)


@contextlib.contextmanager
def _delayed_side_streams() -> Iterator[None]:
    """Let work on streams of the candidate's own start late, so that an unjoined one is late for certain."""
    original = torch.cuda.StreamContext.__enter__

    def enter(self: Any) -> Any:
        entered = original(self)
        if self.stream is not None and self.stream != torch.cuda.default_stream():
            torch.cuda._sleep(_SIDE_DELAY_CYCLES)
        return entered

    torch.cuda.StreamContext.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.cuda.StreamContext.__enter__ = original  # type: ignore[method-assign]


# --- values ----------------------------------------------------------------------------------------------------------


def _on_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, list | tuple):
        return type(value)(_on_gpu(item) for item in value)
    return value
