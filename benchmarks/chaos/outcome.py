"""What an attack found, and the promises that it is held against."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from serving.commands import Running

HEALTH_MS = 100.0  # 99 % of the answers of /healthz come sooner


@dataclass(kw_only=True)
class Outcome:
    """One row of the report.

    Args:
        name: the attack.
        tried: how many requests, kills or rounds.
        figures: what was measured, by name.
        broken: promises that did not hold, one sentence each.
        late: promises about time and rates that did not hold; on a busy machine they may not.
        left_out: why it was not tried, if it was not.
    """

    name: str
    tried: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    left_out: str | None = None


def judge(outcome: Outcome, witness: dict[str, Any], *, allowed: Iterable[str] = ("200",)) -> None:
    """Add what the honest clients saw, and the promises to them that were broken."""
    health = witness["health"]
    outcome.figures |= {
        "health_p50": health["p50"],
        "health_p99": health["p99"],
        "rate": witness["rate"],
    }
    if not health["p99"] < HEALTH_MS:
        outcome.late.append(
            f"/healthz took {health['p99']:.0f} ms (99 %), {HEALTH_MS:g} ms are promised"
        )
    other = Counter(witness["statuses"]) - Counter(dict.fromkeys(allowed, 1 << 60))
    if other:
        outcome.broken.append(f"honest clients got {dict(other)}")
    outcome.broken += witness["faults"]


def log_trouble(server: Running) -> str | None:
    """That the server ended, or the first traceback in its log; None if all is well."""
    if server.process.poll() is not None:
        return f"the server ended: {server.log[-2000:]}"
    _, result, after = server.log.partition("Traceback")
    return f"the server's log: {result}{after[:3000]}" if result else None


def table(outcomes: list[Outcome]) -> str:
    """The report as text."""
    lines = [f"{'attack':<28} {'tried':>7} {'/healthz p99':>12}  figures"]
    for one in outcomes:
        figures = dict(one.figures)
        health = figures.pop("health_p99", None)
        shown = ", ".join(f"{name} {_text(value)}" for name, value in figures.items())
        probed = "" if health is None else f"{health:.0f} ms"
        lines.append(f"{one.name:<28} {one.tried:>7,} {probed:>12}  {one.left_out or shown}")
        lines += [f"  BROKEN: {sentence}" for sentence in (*one.broken, *one.late)]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{number:,} x {name}" for name, number in value.items())
    return str(value)
