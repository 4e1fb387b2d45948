"""``ziggurat schema``: prints the config's JSON Schema."""

from __future__ import annotations

import json

import typer


def command() -> None:
    """Print the JSON Schema of the config, with which editors complete and validate YAML.

    \b
    Examples:
      ziggurat schema > ziggurat.schema.json
      ziggurat init clicks.csv --schema ziggurat.schema.json --out exp.yaml
    """
    from ziggurat.training.experiment import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
