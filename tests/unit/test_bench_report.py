"""The benchmark report: plots, unmeasured rows, and a reason for every slower row."""

from xml.etree import ElementTree

from bench import plots, report
from bench.cases import CASES, PEERS
from bench.harness import Bar, Row, Spread

FASTER = Row("put", Spread(2.0, 1.5, 2.5), Bar(">", 1), over="a peer")
SLOWER = Row("put", Spread(0.5, 0.4, 0.6), over="a peer")
UNMEASURED = Row("put", None, Bar(">", 1), over="a peer", why="Not measured: it is not here.")


def test_only_slower_rows_keep_their_reason() -> None:
    assert FASTER.unless_ahead("it is slow").why == ""
    assert SLOWER.unless_ahead("it  is\n slow").why == "it is slow"


def test_slower_row_without_reason_is_reported() -> None:
    assert report.unexplained([FASTER, SLOWER, SLOWER.unless_ahead("it is slow"), UNMEASURED]) == [
        SLOWER
    ]


def test_page_lists_unmeasured_rows_and_reasons_for_slower_rows() -> None:
    rows = [FASTER, SLOWER.unless_ahead("it is slow"), UNMEASURED]
    page = report.as_page(report.Results({"system": "a machine"}, {CASES[0].name: rows}))
    assert "| put | a peer |  | 0.50x (0.40 to 0.60) | for information | it is slow |" in page
    assert "| put | a peer | > 1x | not measured |  | Not measured: it is not here. |" in page
    assert "All 2 bars hold." in page


def test_peer_case_is_a_case() -> None:
    assert set(PEERS) <= {case.name for case in CASES}


def test_plots_are_well_formed_for_any_name() -> None:
    odd_row = Row('put <&> "take"', Spread(0.2, 0.1, 90.0), over="a <peer>")
    bars = ElementTree.fromstring(plots.ratios([FASTER, odd_row, UNMEASURED], "Title & all"))  # noqa: S314
    assert 'put <&> "take"' in [text.text for text in bars.iter("{http://www.w3.org/2000/svg}text")]
    rows = [
        Row(f"SQLite: {operation}", Spread(1.1, 1, 1.2), rows=10**n)
        for operation in "ab"
        for n in (5, 7)
    ]
    ElementTree.fromstring(plots.growth(rows, "Growth"))  # noqa: S314
