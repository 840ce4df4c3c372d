"""One hostile client with 50 connections beside eight honest ones: every kind of attack in turn."""

from collections.abc import Iterable
from pathlib import Path

from benchmarks.chaos.outcome import Outcome, judge, log_trouble
from benchmarks.chaos.payloads import FLOODS
from benchmarks.chaos.target import result, served, start

SHARE = 0.8  # of their rate is left to honest clients
ENDS = 60  # seconds in which a process that was told to end does


def floods(
    folder: Path, seconds: float, seed: int, requests: dict[str, int], names: Iterable[str] = FLOODS
) -> list[Outcome]:
    """Attack for some seconds each, and on until the wanted requests are sent.

    The attacker's own use of its core, which it shares with the honest clients, is `attacker_core`: the machine's part
    in what they lose, beside the server's.
    """
    found = []
    with served(folder) as server:
        result(start("witness", server.port, 2), ENDS)  # warm
        after = alone(server.port, seconds)
        for name in names:
            before = after
            attack = start("flood", name, server.port, seed, seconds + 3, requests.get(name, 0))
            assert attack.stdout is not None
            attack.stdout.readline()  # it begins
            witness = result(start("witness", server.port, seconds), ENDS + seconds)
            sent = result(attack, 10 * seconds + ENDS)
            one = Outcome(name=f"50 x {name}", tried=sent["requests"], broken=sent["faults"])
            judge(one, witness)
            after = alone(server.port, seconds)
            one.figures |= {"share": 2 * witness["rate"] / (before + after), "statuses": sent["statuses"]}
            one.figures["attacker_core"] = f"{sent['busy']:.0%}"
            if one.figures["share"] < SHARE:
                one.late.append(f"honest clients kept {one.figures['share']:.0%} of their rate, not {SHARE:.0%}")
            found.append(one)
            if (trouble := log_trouble(server)) is not None:
                one.broken.append(trouble)
                break
    return found


def alone(port: int, seconds: float) -> float:
    """The rate of honest clients without an attack; before and after each, since the machine's pace changes."""
    return float(result(start("witness", port, seconds / 2), ENDS)["rate"])
