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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.runtime.jit as jit
from triton.errors import TritonError

from kernelzero.keck import guard, produced, wire
from kernelzero.keck.build import host_library, inprocess, reduced_precision
from kernelzero.keck.cost import tensors
from kernelzero.keck.gpu.cache import cache_folder
from kernelzero.keck.gpu.cudart import CudaError, CudaRuntime, wait_without_spinning
from kernelzero.keck.gpu.mailbox import ChildChannel
from kernelzero.keck.gpu.trace import KernelTrace
from kernelzero.keck.interpreter import front_end_message
from kernelzero.keck.ledger import ACTIVE

_SIDE_DELAY_CYCLES = 2_000_000
"""About a millisecond: work on a stream of the candidate's own starts this late in checked calls."""
_KEPT_BYTES = 256 << 20
_FLUSH_BYTES = 192 << 20
"""More than three times the L2 cache of any GPU so far."""
_WORK_BUFFERS = 2
_CYCLES_PER_MS = 1_800_000


class WatchedKernel(jit.JITFunction):
    """What `@triton.jit` makes in a child on a GPU: Triton's own, and a record of its launches."""

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Launch over `grid`; arguments as Triton takes them."""
        try:
            compiled = super().run(*args, grid=grid, warmup=warmup, **kwargs)
        except TritonError as error:
            raise ACTIVE.compile_fault(f"kernel {self.fn.__name__}: {front_end_message(error)}") from None
        if ACTIVE.in_forward and not warmup:
            _record_launch(self, compiled, (*args, *kwargs.values()))
        return compiled


def _watched_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a CUDA extension that leaves a record: what it was given and what it returned is its work."""

    def call(*args: Any, **kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        if ACTIVE.in_forward:
            ACTIVE.kernel_launches += 1
            with torch._C.DisableTorchFunction():
                for tensor in tensors((args, tuple(kwargs.values()), output)):
                    produced.mark(tensor)
        return output

    return call


def _record_launch(kernel: WatchedKernel, compiled: Any, values: tuple[Any, ...]) -> None:
    name = kernel.fn.__name__
    if name not in ACTIVE.kernels:
        ACTIVE.kernels.append(name)
    compiled_name = getattr(compiled, "name", name)
    if compiled_name not in ACTIVE.own_names:
        ACTIVE.own_names.add(compiled_name)
        narrow = reduced_precision(str(getattr(compiled, "asm", {}).get("ptx", "")))
        if narrow.sixteen:
            ACTIVE.narrowed(f"kernel {name} computes in 16 bits")
    ACTIVE.kernel_launches += 1
    ACTIVE.meter.launches += 1
    with torch._C.DisableTorchFunction():
        for value in values:
            base = getattr(value, "base", value)
            if isinstance(base, torch.Tensor):
                produced.mark(base)


class GpuRuntime:
    """One GPU, the first that this process sees."""

    on_gpu = True

    def __init__(self) -> None:
        self.cuda: CudaRuntime | None = None
        self.trace: KernelTrace | None = None
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
        _warm(GPUTarget("cuda", 90, 32))
        self.host = host_library(cache_folder())
        if torch.cuda.is_initialized():
            raise CudaError("the process that children are forked from has a CUDA context")

    def channel(self, sock: socket.socket) -> wire.Channel:
        """The child's end of its connection to the judge."""
        assert self.cuda is not None
        return ChildChannel(sock, self.cuda)

    # --- in the child ---

    def start(self) -> None:
        """Take the GPU."""
        wire.use_device("cuda")
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # it was for the time before the fork
        wait_without_spinning()
        torch.cuda.init()
        torch.cuda.device_count()  # remembered now; later it would load a library, which a candidate may not
        torch.zeros(1, device="cuda")
        self.cuda, self.trace = CudaRuntime(), KernelTrace()

    def prepare(self, build: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Extensions that the candidate asks torch for are built by the judge."""
        assert self.host is not None
        inprocess.install(lambda spec: build(spec.to_json()), self.host, _watched_function)

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
        if any(not same_bits(a, b) for a, b in zip(leaves, early, strict=True)):
            raise ACTIVE.violate("work goes on after forward has returned: a stream is not joined")
        if len(leaves) != len(tensors(output)):
            raise ACTIVE.violate("an output is on the host, not on the GPU")

    def start_trace(self) -> None:
        """Begin to record which kernels run."""
        assert self.trace is not None
        self.trace.start()

    def stop_trace(self) -> list[tuple[str, int]]:
        """(name, stream) of the kernels that ran since; waits for the device."""
        assert self.trace is not None
        torch.cuda.synchronize()
        return [(kernel.name, kernel.stream) for kernel in self.trace.stop()]

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
        stream = torch.cuda.current_stream()
        flush = _flush_buffer()
        work = [[_blank(value) for value in pool[0]] for _ in range(_WORK_BUFFERS)]
        begin = [torch.cuda.Event(enable_timing=True) for _ in plan]
        end = [torch.cuda.Event(enable_timing=True) for _ in plan]
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.cuda._sleep(int(spin_ms * _CYCLES_PER_MS))
        with torch.no_grad():
            for call, (number, factor) in enumerate(plan):
                inputs = [_scaled(v, factor, w) for v, w in zip(pool[number], work[call % len(work)], strict=True)]
                flush.zero_()
                begin[call].record(stream)
                output = model(*inputs)
                end[call].record(stream)
                self._keep(call, output)
        self.queued_ms = (time.perf_counter() - started) * 1e3
        torch.cuda.synchronize()
        self.times_ms = [a.elapsed_time(b) for a, b in zip(begin, end, strict=True)]

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


_flush: torch.Tensor | None = None


def _flush_buffer() -> torch.Tensor:
    global _flush
    if _flush is None:
        _flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    return _flush


def _blank(value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point):
        return None
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _scaled(value: Any, factor: float, work: Any) -> Any:
    """The value times the factor, in `work`; integers and what is no tensor as they are."""
    return torch.mul(value, factor, out=work) if work is not None else value


# --- kernels ---------------------------------------------------------------------------------------------------------


def _watched_jit(fn: Any = None, **options: Any) -> Any:
    """`triton.jit`: the same options, a kernel that is watched."""

    def decorate(function: Any) -> WatchedKernel:
        known = {k: v for k, v in options.items() if k in _JIT_OPTIONS}
        return WatchedKernel(function, **known)

    return decorate(fn) if fn is not None else decorate


_JIT_OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "repr",
                "launch_metadata")  # fmt: skip


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


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold the same values, NaN equal to NaN."""
    if not a.dtype.is_floating_point:
        return bool(torch.equal(a, b))
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def _on_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, list | tuple):
        return type(value)(_on_gpu(item) for item in value)
    return value
