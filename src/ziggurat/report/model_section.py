"""The report's sections on the model: features, size and tables, config and environment."""

from __future__ import annotations

from ziggurat.report import charts, numbers
from ziggurat.report.inputs import FeatureRow, ModelSize, ReportInputs
from ziggurat.report.markup import Html, el, escape, join, section, table


def features(inputs: ReportInputs) -> Html | None:
    """Returns the section with statistics of each feature over the training rows; None without features."""
    if not inputs.features:
        return None
    looked_up = [row for row in inputs.features if row.kind != "numeric"]
    numeric = [row for row in inputs.features if row.kind == "numeric"]
    parts: list[Html] = []
    if looked_up:
        headers = ["Feature", "Kind", "Coverage", "Missing", "Ids per row", "Distinct", "Access skew", "Top 1 %"]
        parts.append(table(headers, [_looked_up(row) for row in looked_up], text_columns=3))
        parts.append(
            el(
                "p",
                "Coverage is the share of rows with a value. The small curve is the share of look-ups that the most "
                "used rows of the table take, from none to all of its rows: on the dashed diagonal all rows are used "
                "equally; a steep start means that few rows take most of the look-ups. “Top 1 %” is the share that the "
                "most used 1 % of the rows take.",
                cls="soft",
            )
        )
    if numeric:
        headers = ["Feature", "Kind", "Coverage", "Missing", "Mean", "Standard deviation"]
        parts.append(table(headers, [_numeric(row) for row in numeric], text_columns=3))
        parts.append(
            el("p", "Mean and standard deviation are those of the raw values, before the transforms.", cls="soft")
        )
    return section("features", "Features", *parts)


def size(inputs: ReportInputs) -> Html | None:
    """Returns the section with parameters, bytes and FLOPs of the dense parts and of the tables; None without
    either."""
    if inputs.model is None and not inputs.tables:
        return None
    embedding_parameters = sum(row.rows * row.dim for row in inputs.tables)
    embedding_bytes = sum(row.weight_bytes + row.optimizer_bytes for row in inputs.tables)
    parts: list[Html] = []
    if inputs.model is not None:
        sentence = (
            f"{inputs.model.name}: {numbers.count(inputs.model.dense_parameters)} dense parameters and "
            f"{numbers.count(embedding_parameters)} in {len(inputs.tables)} embedding tables "
            f"({numbers.size(embedding_bytes)} with optimizer state). "
            f"{_flops(inputs.model)}"
        )
        if inputs.model.compression is not None:
            sentence += f" Its towers compress embeddings {numbers.short(inputs.model.compression)}×."
        parts.append(el("p", sentence))
        if inputs.model.parts:
            rows: list[list[object]] = [
                [
                    part.name,
                    numbers.count(part.parameters),
                    "not counted" if part.flops is None else numbers.count(part.flops),
                ]
                for part in inputs.model.parts
            ]
            parts.append(table(["Part", "Parameters", "FLOP per example"], rows))
    if inputs.tables:
        mapped = any(row.map_bytes for row in inputs.tables)
        rows = [
            [
                row.name,
                *([row.placement] if inputs.rank_bytes else ()),
                numbers.count(row.rows),
                numbers.count(row.dim),
                numbers.size(row.weight_bytes),
                numbers.size(row.optimizer_bytes),
                *([numbers.size(row.map_bytes) if row.map_bytes else None] if mapped else ()),
            ]
            for row in sorted(inputs.tables, key=lambda row: -row.weight_bytes)
        ]
        placement = ["Placement"] if inputs.rank_bytes else []
        headers = [
            "Table",
            *placement,
            "Rows",
            "Dim",
            "Weights",
            "Optimizer state",
            *(["Encoder's map"] if mapped else []),
        ]
        parts.append(table(headers, rows, text_columns=1 + len(placement)))
    if inputs.rank_bytes:
        parts.append(
            el("p", f"The model was trained on {len(inputs.rank_bytes)} ranks, which held these parts of the tables:")
        )
        most = max(1, *inputs.rank_bytes)
        rows = [
            [f"rank {rank}", el("span", charts.bar(each / most), numbers.size(each), cls="share")]
            for rank, each in enumerate(inputs.rank_bytes)
        ]
        parts.append(table(["Rank", "Tables and optimizer states"], rows))
    return section("size", "Model size", *parts)


def provenance(inputs: ReportInputs) -> Html | None:
    """Returns the section with the environment and the resolved config, which suffice to repeat the run."""
    parts: list[Html] = []
    if inputs.environment:
        rows: list[list[object]] = [
            [str(key), el("span", str(value), cls="wrap")] for key, value in inputs.environment.items()
        ]
        parts += [el("h3", "Environment"), table(["Item", "Value"], rows, text_columns=2)]
    if inputs.config_text:
        parts += [el("h3", "Config"), el("pre", inputs.config_text, tabindex=0)]
    return section("provenance", "Config and environment", *parts) if parts else None


def data_line(inputs: ReportInputs) -> str:
    """Returns one line with the rows of each split and the number of rejected rows."""
    line = " · ".join(f"{numbers.count(rows)} {split}" for split, rows in inputs.rows.items())
    rejected = f" · {numbers.count(inputs.quarantined_rows)} rows rejected" if inputs.quarantined_rows else ""
    return f"{line}{rejected}"


def _flops(model: ModelSize) -> str:
    """Returns the sentence with the FLOPs of a prediction."""
    if model.flops is None:
        return f"The FLOP of a prediction are not counted: {model.note}."
    how = f"; {model.note}" if model.note else ""
    return (
        f"One prediction takes {numbers.scaled(model.flops, 'FLOP')}; a multiply-add counts as two, and "
        f"look-ups are not counted{how}."
    )


def _looked_up(row: FeatureRow) -> list[object]:
    return [
        _name(row),
        row.kind,
        _coverage(row),
        numbers.percent(row.missing_share),
        None if row.pooling_factor is None else numbers.short(row.pooling_factor),
        numbers.count(row.cardinality),
        None if row.skew is None else charts.skew_spark(row.skew),
        None if row.skew is None else numbers.percent(row.skew.top_percent),
    ]


def _numeric(row: FeatureRow) -> list[object]:
    return [
        _name(row),
        row.kind,
        _coverage(row),
        numbers.percent(row.missing_share),
        None if row.mean is None else numbers.short(row.mean),
        None if row.std is None else numbers.short(row.std),
    ]


def _coverage(row: FeatureRow) -> Html:
    return el("span", charts.bar(row.covered_share), numbers.percent(row.covered_share), cls="share")


def _name(row: FeatureRow) -> Html:
    if row.table in (None, row.name):
        return escape(row.name)
    return join([row.name, " ", el("span", f"(table {row.table})", cls="soft")])
