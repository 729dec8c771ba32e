"""Tables that hide nothing."""

import io

from attention_jax.report.tables import Table, experiments_list, markdown, plain, show


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_show_is_plain_in_a_pipe_and_drawn_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    table = Table("Experiments", ("name", "claim"), [("x", "[bold]a\nb")])
    pipe, terminal = io.StringIO(), Terminal()
    show(table, stream=pipe)
    show(table, stream=terminal)
    assert pipe.getvalue() == f"Experiments\n{plain(table)}\n" and "[bold]a b" in pipe.getvalue()
    assert markdown(table).splitlines()[2] == "| x | [bold]a b |"
    assert "[bold]a" in terminal.getvalue() and "\x1b" in terminal.getvalue()  # text is never taken for markup


def test_plain_table_without_rows():
    assert plain(Table("", ("a", "b"), [])) == "a  b"


def test_the_list_of_experiments_is_grouped_and_every_line_is_short():
    entries = [("late", "two", "b " * 99), ("early", "one", "An\nodd  claim."), ("lost", "", "c")]
    lines = experiments_list(entries, ("one", "two", "three"), width=40).splitlines()
    assert lines[:3] == ["one", "  early  An odd claim.", ""]
    assert [line for line in lines if not line.startswith("  ") and line] == ["one", "two", "others"]
    assert max(map(len, lines)) <= 40 and lines[4].endswith(" ...")
