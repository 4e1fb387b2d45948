"""``ziggurat plan``: plans which device holds which shard of which table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ziggurat.cli.figures import WIDTH, bytes_of, print_rows, print_tables
from ziggurat.cli.options import DataFolder, Overrides, PreparedOutput, given_options
from ziggurat.cli.printed.proposed_encoders import propose_encoders

if TYPE_CHECKING:
    from ziggurat.planning import PlanEstimate
    from ziggurat.planning.comparison import Comparison
    from ziggurat.training.experiment import Experiment


_WITH_SERVING = ("candidates", "qps", "pooled_cache", "dequantise")
_NOT_WITH_SERVING = ("overrides", "data", "prepared", "hosts", "devices", "planner", "train", "compare", "compress")
_NOT_WITH_COMPRESS = ("hosts", "devices", "memory", "out", "train", "compare")


def command(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The experiment's YAML file.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    prepared: PreparedOutput = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="Number of machines; default: planning.topology, or 1.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices per machine; default: planning.topology, or this machine's.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory per device, for example 8GB; default: planning.topology, or this machine's."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The plan's file; an .html page is written next to it; default: plan.json."),
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            help="rules, recshard, flexshard, autoshard, torchrec, baseline or MODULE:CLASS; default: planning.planner."
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Before planning, measure this machine and train autoshard's policy for it.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Compare with the plans of all other planners.")] = False,
    serving: Annotated[
        Path | None,
        typer.Option(
            "--serving", metavar="OUT", help="Plan instead how this export is served with --memory of memory."
        ),
    ] = None,
    candidates: Annotated[
        int, typer.Option(help="With --serving: rows that a request has to rank on average.", min=1)
    ] = 100,
    qps: Annotated[
        float | None,
        typer.Option(help="With --serving: requests a second; measures what the disk can read.", min=0),
    ] = None,
    pooled_cache: Annotated[
        str, typer.Option(help="With --serving: part of --memory for pooled rows of long bags.")
    ] = "0",
    dequantise: Annotated[
        bool, typer.Option("--dequantise", help="With --serving: keep tables in memory as float32.")
    ] = False,
    compress: Annotated[
        float | None,
        typer.Option(
            "--compress", metavar="RATIO", help="Propose instead encoders with which tables are smaller by this factor."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print plan and prediction as JSON instead of tables.")
    ] = False,
) -> None:
    """Plan which shard of which table lives on which device, and predict bytes and seconds; prepare if needed.

    \b
    Examples:
      ziggurat plan exp.yaml --hosts 2 --devices 8
      ziggurat plan exp.yaml --devices 8 --set planning.topology.device=h100
      ziggurat plan exp.yaml --devices 4 --memory 8GB --json
      ziggurat plan exp.yaml --devices 4 --compare
      ziggurat plan exp.yaml --devices 4 --planner autoshard --train
      ziggurat plan exp.yaml --compress 10
      ziggurat plan --serving exports/shop --memory 2GB --qps 500
    """
    from ziggurat.core.errors import ConfigError

    if serving is not None:
        if config is not None:
            raise ConfigError(f"--serving {serving}: and the config {config}", "give one of the two")
        _refuse(context, _NOT_WITH_SERVING, "with --serving")
        _plan_serving(serving, memory, candidates, qps, pooled_cache, dequantise, out, as_json)
        return
    if config is None:
        raise ConfigError("CONFIG: missing", "name an experiment's YAML file, or an export: --serving OUT")
    _refuse(context, _WITH_SERVING, "without --serving")
    if compress is not None:
        _refuse(context, _NOT_WITH_COMPRESS, "with --compress")
        propose_encoders(_experiment(config, overrides or [], data, planner), compress, prepared, as_json=as_json)
        return
    from ziggurat.cli.progress import console_progress
    from ziggurat.core.files import make_folder_of, write_json
    from ziggurat.planning.autoshard.learned import learned_costs
    from ziggurat.planning.comparison import Comparison
    from ziggurat.report.plan.page import write_plan
    from ziggurat.training import api

    target = Path("plan.json") if out is None else out
    writes = out is not None or not as_json
    page = _page_path(config, target, writes)
    experiment = _experiment(config, overrides or [], data, planner)
    if writes:
        make_folder_of(target)
    with console_progress() as progress:
        if train:
            folder = api.train_planner(experiment, progress)
            progress.note(f"learned: {learned_costs(folder).source}; {folder}")
        make = api.compare_planners if compare else api.plan
        made = make(experiment, hosts=hosts, devices=devices, memory=memory, prepared=prepared, progress=progress)
    comparison = made if isinstance(made, Comparison) else None
    planned = made.planned if isinstance(made, Comparison) else made
    if writes:
        write_json(target, planned.plan.to_json())
        write_plan(page, experiment.name, planned, comparison)
    if as_json:
        others = {"compared": comparison.to_json()} if comparison else {}
        typer.echo(json.dumps({**planned.to_json(), **others}, indent=1))
        return
    _print(experiment.name, planned, comparison)
    typer.echo(f"{target} {page}")


def _refuse(context: typer.Context, parameters: tuple[str, ...], where: str) -> None:
    """Refuses options that do nothing beside, or without, another.

    Raises:
        ConfigError: one is given.
    """
    from ziggurat.core.errors import ConfigError

    for option in given_options(context, *parameters):
        raise ConfigError(f"{option}: does nothing {where}", f"leave {option} out; see `ziggurat plan --help`")


def _plan_serving(
    export: Path,
    memory: str | None,
    candidates: int,
    qps: float | None,
    pooled_cache: str,
    dequantise: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Plans where the tables of an export are while it is served."""
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import make_folder_of
    from ziggurat.report.plan.serving import load, write_page
    from ziggurat.serving.artefact.manifest import TABLES, Manifest
    from ziggurat.serving.tables.serving_plan import TableMemory, plan_tables
    from ziggurat.storage.tier_benchmark import file_tier

    if memory is None:
        raise ConfigError(f"--serving {export}: --memory is missing", "give the memory for tables: --memory 2GB")
    page = Path("serving.html") if out is None else out
    writes = out is not None or not as_json
    options = TableMemory(
        bytes_of("--memory", memory), candidates, bytes_of("--pooled-cache", pooled_cache), dequantise=dequantise
    )
    manifest = Manifest.read(export)
    if writes:
        make_folder_of(page)
    plan = plan_tables(export, manifest, options)
    on_disk = [each for each in plan.tables if each.is_on_disk]
    disk, remarks = None, list[str]()
    if qps is not None and on_disk:
        largest = max(on_disk, key=lambda each: each.file_bytes)
        disk = file_tier(export / TABLES / largest.entry.file)
        remarks.append(load(plan, qps, disk))
    if writes:
        write_page(page, plan, remarks)
    if as_json:
        rates = {"qps": qps, "reads_per_second": qps * plan.reads} if qps is not None else {}
        measured = {"disk_reads_per_second": disk.reads, "disk_read_seconds": disk.read_s} if disk else {}
        typer.echo(json.dumps({**plan.to_json(), **rates, **measured}, indent=1))
        return
    print_tables(plan)
    for each in remarks:
        typer.echo(f"\n{each}")
    typer.echo(f"\n{page}")


def _page_path(config: Path, target: Path, writes: bool) -> Path:
    """Returns the path of the HTML page next to the plan's file; if ``writes``, checks that both can be written."""
    from ziggurat.core.errors import ConfigError
    from ziggurat.core.files import check_file_target

    if writes:
        check_file_target(target)
    page = target.with_suffix(".html")
    if page == target:
        raise ConfigError(
            f"--out {target}: is the name of the HTML page", f"name the plan: --out {target.with_suffix('.json')}"
        )
    if writes and config.resolve() in (target.resolve(), page.resolve()):
        raise ConfigError(f"--out {target}: would overwrite the config", "name another file: --out plan.json")
    if writes:
        check_file_target(page)
    return page


def _experiment(config: Path, overrides: list[str], data: str | None, planner: str | None) -> Experiment:
    """Loads the experiment with the given planner, with the settings in the file if it configures the same planner."""
    from ziggurat.core.errors import ConfigError
    from ziggurat.planning.config import PLANNERS
    from ziggurat.training import api

    outside = planner is not None and ":" in planner
    if planner is not None and not outside and planner not in PLANNERS:
        raise ConfigError(
            f"--planner {planner}: there is no such planner",
            f"name one of {', '.join(PLANNERS)}; or one of your own, as MODULE:CLASS",
        )
    if planner is not None and api.load_experiment(config, [], data).planning.planner.title != planner:
        key = "import" if outside else "name"
        overrides = [f"planning.planner={{{key}: {json.dumps(planner)}}}", *overrides]
    found = api.load_experiment(config, overrides, data)
    if planner is not None and found.planning.planner.title != planner:
        named = found.planning.planner.title
        raise ConfigError(f"--planner {planner}: --set planning.planner names {named}", "leave one of the two out")
    return found


def _print(name: str, planned: PlanEstimate, comparison: Comparison | None) -> None:
    from rich.console import Console

    from ziggurat.report.plan import rows as plan_rows

    console = Console(width=max(Console().width, WIDTH))
    console.print(f"{name}: {plan_rows.summary(planned)}", highlight=False, soft_wrap=True, markup=False)
    shown = [plan_rows.devices(planned), plan_rows.tables(planned)]
    shown += [plan_rows.tiers(planned), plan_rows.alternatives(planned)] if planned.tiers else []
    shown += [plan_rows.planners(comparison)] if comparison else []
    for headers, rows, texts in shown:
        console.print()
        print_rows(console, headers, rows, texts)
    console.print()
    comparison_lines = [plan_rows.describe_comparison(comparison)] if comparison else []
    comparison_lines += (
        [f"{each.name}: {each.refused}" for each in comparison.entries if not each.planned] if comparison else []
    )
    for line in (plan_rows.verdict(planned), *planned.notes, *comparison_lines):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
