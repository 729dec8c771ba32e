"""Tables that hide nothing."""

import contextlib
import io

from attention_jax.report.tables import Table, experiments_list, markdown, plain, show


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_show_is_plain_in_pipes_rich_on_terminals(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    table = Table("Experiments", ("name", "claim"), [("x", "[bold]a\nb")])
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        with contextlib.redirect_stdout(stream):
            show(table)
    assert pipe.getvalue() == f"Experiments\n{plain(table)}\n" and "[bold]a b" in pipe.getvalue()
    assert markdown(table).splitlines()[2] == "| x | [bold]a b |"
    assert "[bold]a" in terminal.getvalue() and "\x1b" in terminal.getvalue()  # text is never taken for markup


def test_plain_table_without_rows():
    assert plain(Table("", ("a", "b"), [])) == "a  b"


def test_experiments_list_is_grouped_and_fits_the_width():
    columns = ("name", "paper", "data", "minutes")
    late = Table("two", columns, [("late", "b " * 30, "c " * 20, "12")], right=("minutes",))
    early = Table("one", columns, [("early", "A. 2017", "-", "< 1")], right=("minutes",))
    lines = experiments_list([early, late], width=50).splitlines()
    assert [line for line in lines if line in ("one", "two")] == ["one", "two"]
    assert max(map(len, lines)) <= 50 and lines[-1].startswith("late") and lines[-1].count(" ...") == 2
    assert [len(line) for line in (lines[0], lines[3], lines[-1])] == [50] * 3, "numbers are flush right"
    wide = experiments_list([early, late], width=200).splitlines()
    assert " ".join(wide[-1].split()) == "late " + "b " * 30 + "c " * 20 + "12"
