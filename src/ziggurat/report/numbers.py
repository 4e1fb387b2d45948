"""Formats numbers for the report."""

from __future__ import annotations

import math


def figure(value: float | None, digits: int = 4) -> str:
    """Formats a metric with fixed decimals, or more to show three significant digits; a dash if undefined."""
    if value is None or math.isnan(value):
        return "–"
    if value != 0 and not 1e-5 <= abs(value) < 1e6:
        return _exponent(f"{value:.2e}")
    if value != 0:
        digits = max(digits, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".replace("-", "−")


def difference(value: float, digits: int = 4) -> str:
    """Formats a difference of metrics, with its sign."""
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def count(value: float | None) -> str:
    """Formats an integer with thousands separators."""
    return "–" if value is None or math.isnan(value) else f"{round(value):,}"


def percent(value: float | None) -> str:
    """Formats a share in percent; shares close to 0 and 1 are not rounded to them."""
    if value is None or math.isnan(value):
        return "–"
    if 0 < value < 0.0005:
        return "<0.1 %"
    if 0.9995 < value < 1:
        return ">99.9 %"
    return f"{100 * value:.1f} %"


def size(value_bytes: float) -> str:
    """Formats bytes in the binary unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value_bytes < 1024:
            return f"{value_bytes:.0f} {unit}" if unit == "B" else f"{value_bytes:.1f} {unit}"
        value_bytes /= 1024
    return f"{value_bytes:.1f} TiB"


def scaled(value: float, unit: str = "") -> str:
    """Formats a large count with an SI prefix: 12.3 k, 4.56 MFLOP."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(value) >= 999.5 and len(prefixes) > 1:
        value /= 1000
        prefixes.pop(0)
    return f"{value:.3g} {prefixes[0]}{unit}".rstrip()


def duration(seconds: float | None) -> str:
    """Formats a duration in seconds below two minutes, then in minutes, then in hours."""
    if seconds is None or math.isnan(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def short(value: float) -> str:
    """Formats a statistic or tick of any magnitude with at most four significant digits."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}".replace("-", "−")
    return _exponent(f"{value:.2e}")


def tick(value: float) -> str:
    """Formats an axis tick as briefly as possible: 0.75, 20 k, 2e−4."""
    if abs(value) >= 1e4:
        return scaled(value)
    if value != 0 and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return _exponent(f"{float(mantissa):g}e{exponent}")
    return f"{value:.6g}".replace("-", "−")


def _exponent(written: str) -> str:
    """Shortens an exponent: ``2.0e-04`` becomes ``2.0e−4``."""
    mantissa, exponent = written.split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")
