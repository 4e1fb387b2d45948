"""``ziggurat plan`` through the command line, and ``ziggurat.plan``; planners are tested in tests/planning."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
from typer.testing import CliRunner

import ziggurat
from tests.training.conftest import MakeExperiment
from tests.training.conftest import make_experiment as make_experiment
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError, NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.planning.autoshard.learned import learned_policy
from ziggurat.training.experiment import to_yaml
from ziggurat.training.placement import kernel_benchmark as kernels
from ziggurat.training.placement import policy_training

CPU = {
    "device": "cpu", "memory": 10**9, "lookup_bandwidth": 1e10, "intra_bandwidth": 1e9, "inter_bandwidth": 1e8,
}  # fmt: skip

RULES_ONLY = ("replicate_up_to", "fused", "rounds", "slack")


@pytest.fixture
def config(make_experiment: MakeExperiment, tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(to_yaml(make_experiment(planning__topology=CPU)))
    return path


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_prints_draws_and_writes_a_plan(config: Path) -> None:
    constraint = "planning.tables={item: {sharding: row_wise}}"
    lines = run(config, "--hosts", "2", "--devices", "2", "--set", constraint).splitlines()
    assert lines[0] == "small: 3 tables on 2 hosts × 2 devices (cpu), 1 GB each, 32 examples per step and device"
    assert lines[2].split() == ["host,", "device", "tables", "weights", "optimizer", "buffers", "spare", "in", "host",
                                "between", "time"]  # fmt: skip
    assert [line.split()[:2] for line in lines[3:7]] == [["0,", "0"], ["0,", "1"], ["1,", "2"], ["1,", "3"]]
    item = next(line for line in lines if line.startswith("item")).split()
    assert item[1:6] == ["row_wise", "0–3", "62", "8", "3.005"]
    assert item[6:10] == ["1.98", "kB", "248", "B"]  # 62 rows of 8 floats, one float of state each
    assert lines[-2].startswith("By the cost model the slowest device needs ")
    assert lines[-1] == "plan.json plan.html"
    plan = Plan.from_json(json.loads(Path("plan.json").read_text(encoding="utf-8")))
    assert (plan.world_size, plan.local_size) == (4, 2)
    assert plan.placements["item"] == Placement("row_wise", (0, 1, 2, 3))
    assert "small: placement of the tables" in Path("plan.html").read_text(encoding="utf-8")
    assert [*Path("prepared").iterdir()]


def test_a_tables_name_is_printed_as_it_is(config: Path) -> None:
    lines = run(config, "--devices", "2", "--set", 'features.tags.table="[bold]t [red] ok"').splitlines()
    assert sum(line.startswith("[bold]t [red] ok  ") for line in lines) == 1


def test_json_output_writes_no_file(config: Path) -> None:
    output = json.loads(run(config, "--devices", "2", "--memory", "2GB", "--json"))
    assert not Path("plan.json").exists()
    assert output["topology"]["memory_bytes"] == 2 * 10**9
    assert [device["rank"] for device in output["devices"]] == [0, 1]
    assert [table["name"] for table in output["tables"]] == ["user", "item", "tags"]
    assert output["step_seconds"] == max(device["seconds"] for device in output["devices"])
    shards = [each for each in output["shards"] if each["table"] == "item"]
    placement = output["plan"]["placements"]["item"]
    assert [each["rank"] for each in shards] == placement["ranks"]
    run(config, "--devices", "2", "--memory", "2GB", "--json", "-o", "two.json")
    assert json.loads(Path("two.json").read_text(encoding="utf-8")) == output["plan"]
    assert Path("two.html").is_file()


def test_json_output_is_pure_though_the_solver_prints(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS puts a line on standard output now and then; here it does so every time."""
    libc, real = ctypes.CDLL(None), scipy.optimize.milp
    solved: list[None] = []

    def milp(*arguments: Any, **options: Any) -> Any:
        solved.append(libc.puts(b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();") and None)
        return real(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "milp", milp)
    capfd.readouterr()
    app(["plan", str(config), "--devices", "2", "--planner", "recshard", "--json"], standalone_mode=False)
    libc.fflush(None)
    output = json.loads(capfd.readouterr().out)
    assert solved
    assert output["plan"]["notes"][0].startswith("recshard: ")


def test_two_memories(config: Path) -> None:
    """Memory for the buffers of a step and some rows; RecShard's plan is printed, also as JSON."""
    declare = ["planning.topology.slow_memory=1MB", "planning.topology.slow_bandwidth=100MB/s"]
    keys = (*declare, "planning.planner={name: recshard}", "planning.reserve=0")
    options = [each for key in keys for each in ("--set", key)]
    lines = run(config, "--devices", "2", "--memory", "48kB", *options).splitlines()
    assert "48 kB each and 1 MB of slow memory" in lines[0]
    assert {"fast", "slow", "reads"} <= {*lines[2].split()}
    assert any("of the look-ups read slow memory" in line for line in lines)
    assert any(line.startswith("recshard: ") for line in lines)
    output = json.loads(run(config, "--devices", "2", "--memory", "48kB", *options, "--json"))
    assert all(device["fast_bytes"] + device["slow_bytes"] > 0 for device in output["devices"])
    assert output["slow_share"] == pytest.approx(
        sum(d["slow_lookups"] for d in output["devices"]) / sum(d["lookups"] for d in output["devices"])
    )
    assert output["plan"]["version"] == 5
    with pytest.raises(ConfigError, match="slow_memory is given without slow_bandwidth; give both or neither"):
        run(config, "--set", declare[0])


def test_planners_are_compared(config: Path) -> None:
    lines = run(config, "--devices", "2", "--planner", "baseline", "--compare").splitlines()
    headers = next(n for n, line in enumerate(lines) if line.startswith("planner "))
    names = [line.split("  ")[0] for line in lines[headers + 1 : lines.index("", headers)]]
    assert names[0] == "by lookup"
    assert {"rules", "autoshard", "by ldm"} <= {*names}
    assert any(line.startswith("Planners are compared by kernels as measured on") for line in lines)
    assert "Planners" in Path("plan.html").read_text(encoding="utf-8")
    output = json.loads(run(config, "--devices", "2", "--compare", "--json"))["compared"]
    assert output["planners"][0]["name"] == "rules"
    assert all(len(each["device_seconds"]) == 2 for each in output["planners"])


def test_a_planner_option_keeps_the_settings_in_the_file(config: Path, tmp_path: Path) -> None:
    plan = Plan.from_json(json.loads(run(config, "--devices", "2", "--planner", "autoshard", "--json"))["plan"])
    assert plan.notes[0].startswith("autoshard: ")
    settings = ("--set", "planning.planner.by=dim")
    output = json.loads(run(config, "--devices", "2", "--planner", "baseline", *settings, "--json"))
    assert output["plan"]["notes"] == ["baseline: whole tables by dim"]
    named = tmp_path / "named.yaml"
    named.write_text(config.read_text() + "\n")
    text = named.read_text().replace("name: rules", "name: baseline\n    by: size")
    named.write_text("\n".join(line for line in text.splitlines() if line.split(":")[0].strip() not in RULES_ONLY))
    output = json.loads(run(named, "--devices", "2", "--planner", "baseline", "--json"))
    assert output["plan"]["notes"] == ["baseline: whole tables by size"]
    with pytest.raises(
        ConfigError,
        match=r"--planner magic: there is no such planner\n  hint: name one of rules, recshard, .*MODULE:CLASS",
    ):
        run(config, "--planner", "magic")


def test_a_planner_of_your_own_is_named_by_its_class(config: Path) -> None:
    named = "tests.contracts.faulty_parts:FirstDevice"
    output = json.loads(run(config, "--devices", "2", "--planner", named, "--json"))
    assert {tuple(each["ranks"]) for each in output["plan"]["placements"].values()} == {(0,)}
    with pytest.raises(ConfigError, match="there is no module 'not_there'"):
        run(config, "--planner", "not_there:Planner")


def test_shards_of_a_plan_are_measured(config: Path) -> None:
    local = ("--set", "planning.topology={}", "--set", "planning.planner.refine_s=0.5")
    output = run(config, "--devices", "2", "--planner", "autoshard", *local)
    assert "devices' shards were measured: the slowest took" in output
    with pytest.raises(ConfigError, match=r"planning\.planner\.refine_s: 0\.5, and only this machine can be measured"):
        run(config, "--devices", "2", "--planner", "autoshard", *local[2:])


def test_overwriting_the_config_and_contradicting_options_are_refused(config: Path) -> None:
    before = config.read_text()
    with pytest.raises(ConfigError, match=r"--out .*: would overwrite the config"):
        run(config, "--devices", "2", "--out", str(config))
    assert config.read_text() == before
    with pytest.raises(ConfigError, match=r"--planner rules: --set planning\.planner names autoshard"):
        run(config, "--devices", "2", "--planner", "rules", "--set", "planning.planner={name: autoshard}")


def test_a_policy_is_trained(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 2)  # the quality of the fit is not tested here
    monkeypatch.setattr(kernels, "SETS", 20)  # instead of 2,000
    monkeypatch.setattr(kernels, "MAX_BYTES", 10**7)  # only small tables are measured
    monkeypatch.setattr(policy_training, "ROUNDS", 1)  # only the command is tested, not the policy's quality
    monkeypatch.setattr(policy_training, "MEASURED_TASKS", 1)  # instead of eight, as each runs kernels
    monkeypatch.setattr(policy_training, "UPDATES", 1)  # instead of fifty
    with pytest.raises(ConfigError, match=r"planning\.planner: rules has nothing to train"):
        run(config, "--train")
    with pytest.raises(ConfigError, match=r"planning\.topology\.device: cpu, but only this machine can be measured"):
        run(config, "--planner", "autoshard", "--train")
    folder = tmp_path / "learned"
    learned = ("--set", f"planning.planner.learned={folder}")
    lines = run(config, "--devices", "2", "--planner", "autoshard", *learned, "--train").splitlines()
    assert any(line.startswith("autoshard: ") for line in lines)
    assert learned_policy(folder).origin["rounds"] == 1


def test_misuse_is_explained(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory: expected bytes, as in 8GB or 512MiB; received 'lots'"):
        run(config, "--memory", "lots")
    for invalid, received in (("0", "0"), ("0GB", "0"), ("0.1", "0")):
        with pytest.raises(ConfigError, match=rf"memory: must be greater than 0; received {received}\n  hint: "):
            run(config, "--memory", invalid)
    with pytest.raises(ConfigError, match=r"memory: expected bytes.*; received '-1GB'"):
        run(config, "--memory", "-1GB")
    with pytest.raises(ConfigError, match=r"--set planning\.topology\.device: Input should be 'local', 'cpu', 'l4'"):
        run(config, "--set", "planning.topology.device=h1000")
    with pytest.raises(ConfigError, match=r"planning\.tables\.itm: there is no such table; did you mean 'item'\?"):
        run(config, "--set", "planning.tables={itm: {sharding: row_wise}}")
    with pytest.raises(
        ConfigError, match=r"planning\.tables\.item\.ranks: there is no rank 7\n  hint: ranks are 0 to 1"
    ):
        run(config, "--devices", "2", "--set", "planning.tables={item: {sharding: table_wise, ranks: [7]}}")
    with pytest.raises(NoFeasiblePlan, match=r"^20 kB of memory a device is .* short: the least .*\n.*makes room: "):
        run(config, "--devices", "2", "--memory", "20kB")
    with pytest.raises(
        ConfigError, match=r"--out two\.html: is the name of the HTML page\n  hint: name the plan: --out two\.json"
    ):
        run(config, "--out", "two.html")
    with pytest.raises(DataError, match="is a folder"):
        run(config, "--out", tmp_path)
    for here in (".", "..", ""):
        with pytest.raises(DataError, match=r"^\.+: is a folder, not a file\n  hint: name a file in it"):
            run(config, "--out", here)
    for option in ("--hosts", "--devices"):
        assert CliRunner().invoke(app, ["plan", str(config), option, "0"]).exit_code == 2


def test_a_place_that_cannot_be_written_is_told_before_planning(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.training.api.plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(DataError, match=r"small\.yaml"):
        run(config, "--out", config / "plan.json")


def test_more_devices_than_rows_of_a_batch_are_refused_as_in_training(config: Path) -> None:
    output = r"training\.batch_size=4: a batch is shared by 8 ranks, some would have no row\n  hint: .*batch_size=8 or"
    with pytest.raises(ConfigError, match=output):
        run(config, "--devices", "8", "--set", "training.batch_size=4")
    with pytest.raises(ConfigError, match=output):
        run(config, "--hosts", "2", "--devices", "4", "--set", "training.batch_size=4")
    assert not Path("prepared").exists()
    run(config, "--devices", "8", "--set", "training.batch_size=8")


def test_the_python_api_plans_the_same(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(planning__topology=CPU, planning__tables={"tags": {"sharding": "data_parallel"}})
    planned = ziggurat.plan(experiment, hosts=2, devices=2, memory="2GB")
    assert planned.topology.world_size == 4
    assert planned.plan.placements["tags"] == Placement("data_parallel", (0, 1, 2, 3))
    assert ziggurat.plan(experiment, hosts=2, devices=2, memory=2 * 10**9) == planned
    assert planned.ids_per_row["user"] == 1.0  # one id per row
    invalid: dict[str, Any]
    for name, received in (("hosts", 0), ("devices", 0), ("devices", -2), ("memory", 0), ("memory", -5)):
        invalid = {name: received}
        with pytest.raises(ConfigError, match=f"{name}: must be greater than 0; received {received}"):
            ziggurat.plan(experiment, **invalid)
    assert 2.9 < planned.ids_per_row["item"] < 3.1  # the item, and (0 + 1 + 2 + 3 + 3 + 3) / 6 of its history


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["exp.yaml", "--qps", "5"], "--qps: does nothing without --serving"),
        (["exp.yaml", "--pooled-cache", "1MB"], "--pooled-cache: does nothing without --serving"),
        (["exp.yaml", "--candidates", "5"], "--candidates: does nothing without --serving"),
        (["exp.yaml", "--dequantise"], "--dequantise: does nothing without --serving"),
        (["--serving", "out", "--memory", "1GB", "--hosts", "2"], "--hosts: does nothing with --serving"),
        (["--serving", "out", "--memory", "1GB", "--planner", "rules"], "--planner: does nothing with --serving"),
        (["--serving", "out", "--memory", "1GB", "--compare"], "--compare: does nothing with --serving"),
        (["--serving", "out", "--memory", "1GB", "--set", "a=1"], "--set: does nothing with --serving"),
        (["exp.yaml", "--compress", "4", "--devices", "2"], "--devices: does nothing with --compress"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: list[str], problem: str) -> None:
    found = CliRunner().invoke(app, ["plan", *options])
    assert isinstance(found.exception, ConfigError)
    assert found.exception.problem == problem
