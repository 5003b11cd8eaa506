"""The real services of a run: Keck, models, prompts, API sets and the benchmark, wired from the configuration.

Everything heavy is imported when it is first needed. Not covered: models on other machines.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from kernelzero.config import Config
from kernelzero.judging import Services
from kernelzero.records import ApiSet, Sampling, Task


def real_services(config: Config) -> Services:
    """Services for a configuration; `close` stops Keck.

    Raises:
        UsageError: This machine cannot judge kernels, or a name in the configuration is unknown.
    """
    from kernelzero.coder.extract import extract_kernel
    from kernelzero.coder.prompt import coder_prompt
    from kernelzero.policy import open_sampler, prompt_style
    from kernelzero.proposer.gates import check
    from kernelzero.proposer.parse import parse_module
    from kernelzero.proposer.prompt import proposer_prompt

    keck = _open_keck(config)
    device = "cpu" if config.training.device == "cpu" else None
    services = Services(
        keck=keck,
        gate=lambda jobs: check(keck, jobs),
        open_sampler=lambda model: open_sampler(
            model,
            device=device,
            engine="vllm" if config.sampling.engine == "vllm" else "transformers",
            static_cache=config.sampling.engine == "static",
            gpu_memory_utilization=config.sampling.gpu_memory,
        ),
        resolve_model=resolve_model,
        style_of=prompt_style,
        proposer_prompt=proposer_prompt,
        coder_prompt=coder_prompt,
        read_module=parse_module,
        read_kernel=extract_kernel,
        api_pool=lambda size, seed: api_pool(config.curriculum.apis, size, seed),
        close=keck.close,
    )
    if not config.bench.tasks:
        return services
    from kernelzero.normalise import is_held_out

    tasks = bench_tasks(config.bench.tasks)
    benchmark = _Benchmark(config, services)
    return dataclasses.replace(services, benchmark=benchmark, is_held_out=lambda source: is_held_out(source, tasks))


def _open_keck(config: Config) -> Any:
    """Keck on this machine, or the service that the configuration names."""
    from kernelzero.keck import limits_for, open_keck

    keck = config.keck
    if keck.url:
        from kernelzero.keck.serve.remote import RemoteKeck

        return RemoteKeck(keck.url)
    return open_keck(keck.device, keck.workers, limits_for(keck.device, keck.timeout_s))


def resolve_model(name: str) -> str:
    """The folder of "nano:proposer" or "nano:coder", the full path of a folder, a hub id as it is."""
    from kernelzero.policy import nano_path

    if name.startswith("nano:"):
        return str(nano_path(name.removeprefix("nano:")))
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def api_pool(apis: str, size: int, seed: int) -> list[ApiSet]:
    """A pool of API sets over the operators of the installed torch, or over the composer's only."""
    from kernelzero.apis.catalogue import load_catalogue, resolvable
    from kernelzero.apis.sampler import sample_pool

    catalogue, _ = resolvable(load_catalogue())
    if apis == "all":
        return sample_pool(catalogue, size, seed)
    from kernelzero.proposer.composer import SUPPORTED_APIS

    return sample_pool(catalogue, size, seed, set(SUPPORTED_APIS) & set(catalogue.apis))


def bench_tasks(name: str) -> list[Task]:
    """The tasks that `bench.tasks` names: "builtin", or a folder."""
    from kernelzero.bench import named_tasks

    return named_tasks(name)


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    """One benchmark pass of a model, into the run folder's `bench/`."""

    config: Config
    services: Services

    def __call__(self, model_path: str, label: str, folder: Path) -> dict[str, Any]:
        from kernelzero.bench.run import run_bench

        bench, backend = self.config.bench, self.config.coder.backend
        keck: Any = self.services.keck
        sampler = self.services.open_sampler(model_path)
        try:
            return run_bench(
                bench_tasks(bench.tasks),
                sampler,
                keck,
                n=bench.n,
                backend=backend,
                sampling=Sampling(bench.temperature, bench.top_p, self.config.coder.max_tokens, self.config.run.seed),
                run_folder=folder,
                label=label,
                make_prompt=lambda task: self.services.coder_prompt(task, backend, sampler.style),
            )
        finally:
            sampler.close()
