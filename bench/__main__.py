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
    arguments = _arguments()
    if arguments.page:
        report.write_page()
        return 0
    names = [*arguments.cases, *(PEERS if arguments.peers else ())]
    chosen = [case for case in CASES if not names or case.name in names]
    values: dict[str, list[Row]] = {}
    failed: list[str] = []
    with _progress() as progress:
        bar = progress.add_task("", total=len(chosen), case="")
        bench = Bench(
            quick=arguments.quick, progress=lambda text: progress.update(bar, description=text)
        )
        try:
            for case in chosen:
                progress.update(bar, case=case.name)
                try:
                    values[case.name] = _measure(case, bench)
                except Exception:
                    # Continue with the other cases.
                    failed.append(case.name)
                    traceback.print_exc()
                    continue
                progress.advance(bar)
                print(report.as_text(case, values[case.name]), flush=True)
                if not arguments.quick:
                    report.add(facts(bench), case.name, values[case.name])
        finally:
            bench.close()
    if failed:
        print(f"\nNot measured because of the errors above: {', '.join(failed)}.")
    if arguments.quick:
        print("\nA quick run writes no report.")
    else:
        print(f"\nWritten: {report.RESULTS.name} and {report.PAGE.name}.")
    rows = [row for rows in values.values() for row in rows]
    if without_reason := report.unexplained(rows):
        print(f"\nSlower, {report.NO_REASON}: {report.join_labels(without_reason)}.")
    return 1 if failed or without_reason or not all(row.holds for row in rows) else 0


def _measure(case: Case, bench: Bench) -> list[Row]:
    """Measure a case. A row that misses its bar is measured again, and the second result counts."""
    rows = case.measure(bench)
    if all(row.holds for row in rows):
        return rows
    return [
        first if first.holds else second.after_first_measurement(first)
        for first, second in zip(rows, case.measure(bench), strict=True)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"only these, of {', '.join(names)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, a shorter history; writes nothing"
    )
    parser.add_argument("--peers", action="store_true", help="only comparisons with other tools")
    parser.add_argument(
        "--page", action="store_true", help="write the page from stored results, without measuring"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(names):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    return arguments


def _progress() -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[bold]{task.fields[case]}[/] {task.description}"),
        console=Console(stderr=True),
        transient=True,
        # On a terminal, results are printed above the progress bar.
        redirect_stdout=sys.stdout.isatty(),
    )


if __name__ == "__main__":
    sys.exit(main())
