"""One rank under a launcher, with NCCL; and what the ranks' tools do there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.cuda.conftest import WANTED, Make
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.dense import gradient_sync, parallelise
from ziggurat.parallel.world import World
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.process_group import pick_device, process_group

STEPS = 8


def command(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("launcher", ["nproc", "torchrun"])
def test_one_rank_of_a_launcher_trains_the_same_bits(make: Make, launcher: str) -> None:
    experiment = make(training__max_steps=STEPS, training__threads=1)
    Path("exp.yaml").write_text(to_yaml(experiment))
    train = ["ziggurat", "train", "exp.yaml", "--run", "ranks"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "--", *train]
    status, said = command(*(torchrun if launcher == "torchrun" else [*train, "--nproc", "1"]))
    assert status == 0, said
    threads = torch.get_num_threads()
    try:
        api.train(experiment, "alone")
    finally:
        torch.set_num_threads(threads)
    assert_same_bits(tensors(Path("alone"), STEPS), tensors(Path("ranks"), STEPS))


@pytest.mark.skipif(WANTED != "cuda" or torch.cuda.device_count() != 1, reason="needs exactly one GPU")
def test_more_ranks_than_gpus_are_refused(make: Make) -> None:
    Path("exp.yaml").write_text(to_yaml(make(training__max_steps=STEPS)))
    status, said = command("ziggurat", "train", "exp.yaml", "--run", "ranks", "--nproc", "2")
    assert status == 1, said
    assert "GPU" in said
    assert "Traceback" not in said


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(EnvironmentMismatch, match=r"rank 2 of this host has no GPU: torch sees 2"):
        pick_device("auto")


def test_the_group_of_the_device_exchanges_tensors_of_both(device: torch.device) -> None:
    with process_group(device):
        for where in (device, torch.device("cpu")):
            numbers = torch.arange(8.0, device=where)
            dist.all_reduce(numbers)
            assert numbers.tolist() == list(range(8))
        answers: list[Any] = [None]
        dist.all_gather_object(answers, {"rank": 0})
        assert answers == [{"rank": 0}]
        assert (WANTED != "cuda") or "nccl" in str(dist.get_backend_config())


DENSE: list[dict[str, Any]] = [
    {"name": "ddp"},
    *({"name": "ddp", "hook": hook} for hook in ("fp16", "bf16", "powersgd")),
    {"name": "fsdp"},
    {"name": "fsdp", "reshard_after_forward": False, "parameters": "bf16", "reduce": "fp32"},
    {"name": "hsdp", "shard_size": 1},
]


@pytest.mark.parametrize("dense", DENSE, ids=lambda each: "-".join(map(str, each.values())))
def test_every_kind_of_parallelism_makes_the_steps_of_a_plain_module(
    device: torch.device, dense: dict[str, Any]
) -> None:
    """In a world of one, where training does not use it; here the library's part runs over the real backend."""

    def module() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
        return layers.to(device)

    half = dense.get("hook", "none") != "none" or dense.get("parameters") == "bf16"
    with process_group(device):
        plain, config = module(), ParallelConfig.model_validate({"dense": dense, "shared_memory": False})
        wrapped = parallelise(module(), config, World(0, 1, 1), device)
        sgd = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, wrapped)]
        for step in range(4):
            inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step)).to(device)
            results: list[float] = []
            for each, optimizer in zip((plain, wrapped), sgd, strict=True):
                with gradient_sync(each, True):
                    loss = (each(inputs) - inputs[:, :1]).square().mean()
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                results.append(float(loss.detach()))
            assert results[1] == pytest.approx(results[0], rel=0.02 if half else 1e-5)
        for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
            whole = other.full_tensor() if isinstance(other, DTensor) else other
            torch.testing.assert_close(whole, one, rtol=0.1 if half else 1e-4, atol=0.02 if half else 1e-5)


def test_doctor_finds_nothing_to_fix(tmp_path: Path) -> None:
    status, said = command("ziggurat", "doctor", COLUMNS="300")
    assert status == 0, said
    assert "one lookup on " + (torch.cuda.get_device_name() if WANTED == "cuda" else "the CPU") in said
