"""Benchmark Corral's hot paths against the raw drivers and against peers, and write the report."""

import argparse
import sys
import traceback

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.cases import CASES, PEERS, Case
from bench.environment import facts
from bench.harness import Bench, Row


def main() -> int:
    wanted = _arguments()
    if wanted.page:
        report.write_page()
        return 0
    names = [*wanted.cases, *(PEERS if wanted.peers else ())]
    chosen = [case for case in CASES if not names or case.name in names]
    values: dict[str, list[Row]] = {}
    failed: list[str] = []
    with _progress() as progress:
        bar = progress.add_task("", total=len(chosen), case="")
        bench = Bench(quick=wanted.quick, told=lambda text: progress.update(bar, description=text))
        try:
            for case in chosen:
                progress.update(bar, case=case.name)
                try:
                    values[case.name] = _measure(case, bench)
                except Exception:
                    # The other cases are still measured.
                    failed.append(case.name)
                    traceback.print_exc()
                    continue
                progress.advance(bar)
                print(report.as_text(case, values[case.name]), flush=True)
                if not wanted.quick:
                    report.add(facts(bench), case.name, values[case.name])
        finally:
            bench.close()
    if failed:
        print(f"\nNot measured, for the errors above: {', '.join(failed)}.")
    if wanted.quick:
        print("\nA quick run is no report; nothing was written.")
    else:
        print(f"\nWritten: {report.RESULTS.name} and {report.PAGE.name}.")
    rows = [row for rows in values.values() for row in rows]
    if silent := report.unexplained(rows):
        print(f"\nNot ahead, and {report.NOBODY_SAYS}: {report.in_words(silent)}.")
    return 1 if failed or silent or not all(row.holds for row in rows) else 0


def _measure(case: Case, bench: Bench) -> list[Row]:
    """Measure a case; measure it again if it misses its target, and keep the second result."""
    rows = case.measure(bench)
    if all(row.holds for row in rows):
        return rows
    return [
        first if first.holds else second.after_a_first_look(first)
        for first, second in zip(rows, case.measure(bench), strict=True)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"only these, of {', '.join(names)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a shorter history")
    parser.add_argument("--peers", action="store_true", help="those that compare with others")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page anew")
    wanted = parser.parse_args()
    if unknown := set(wanted.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return wanted


def _progress() -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[bold]{task.fields[case]}[/] {task.description}"),
        console=Console(stderr=True),
        transient=True,
        # Results are printed above the progress bar on a terminal, and as plain lines elsewhere.
        redirect_stdout=sys.stdout.isatty(),
    )


if __name__ == "__main__":
    sys.exit(main())
