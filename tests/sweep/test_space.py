"""Search spaces: what is read, and one clear line for everything that is wrong."""

import pytest

from attention_jax.config import Config, Corpus, Dates, LuongSeq2seqConfig
from attention_jax.errors import InputError
from attention_jax.sweep.space import Range, Values, assignments, format_space, grid, label, parse

DATE = Config("date_luong", Dates(), LuongSeq2seqConfig())


def test_values_have_the_types_of_their_fields():
    over = {"optim.learning-rate": "1e-4..1e-2:log", "model.hidden_size": "8..64"}
    space = parse(DATE, over | {"data.reverse-source": "true,false", "model.score": "dot,general"})
    assert space["optim.learning_rate"] == Range(1e-4, 1e-2, True, False, 0)
    assert space["model.hidden_size"] == Range(8, 64, False, True, 0)
    assert space["data.reverse_source"] == Values((True, False))
    assert space["model.score"] == Values(("dot", "general"))


@pytest.mark.parametrize(
    "over, message",
    [
        ({"optim.lerning-rate": "1..2"}, "perhaps you meant optim.learning-rate"),
        ({"hidden-size": "8,16"}, "perhaps you meant model.hidden-size"),
        ({"zzz": "1"}, "no parameter zzz"),
        ({"optim.learning-rate": "1e-2..1e-4"}, "is empty"),
        ({"optim.learning-rate": "1..1"}, "is empty"),
        ({"optim.learning-rate": "0..1:log"}, "cannot touch zero"),
        ({"optim.weight-decay": "-1..1:log"}, "cannot touch zero"),
        ({"optim.learning-rate": "1..2:lin"}, "a range is LOW..HIGH"),
        *(
            ({"optim.learning-rate": f"1..2{marks}"}, "for a grid of 1 or more points")
            for marks in (":0", ":log:0", ":00", ":-3", ":2.5", ":5:5", ":5:3", ":log:log", ":", ":log:", ":²", ":1e1")
        ),
        ({"model.hidden-size": "4..8:0"}, "for a grid of 1 or more points"),
        ({"model.hidden-size": "small"}, "whole number"),
        ({"model.hidden-size": "8.5"}, "whole number"),
        ({"optim.learning-rate": "nan"}, "finite"),
        ({"model.score": "dott"}, "perhaps you meant dot"),
        ({"model.score": "1..2"}, "list its values"),
        ({"data.reverse-source": "yes"}, "true or false"),
        ({"train.label-smoothing": "0,1.5"}, "below 1"),
        ({"optim.learning-rate": "-1..1"}, "--optim.learning-rate must be above 0, got -1"),
        ({"train.seed": "1,2"}, "--seeds"),
        ({}, "at least one parameter"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(over, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")) as error:
        parse(DATE, over)
    assert "\n" not in str(error.value)


def test_one_option_in_two_spellings_is_refused():
    with pytest.raises(InputError, match="optim.learning_rate twice"):
        parse(DATE, assignments(["optim.learning-rate=1e-3,1e-2", "optim.learning_rate=5"]))


@pytest.mark.parametrize("words, message", [(["x"], "NAME=VALUES"), (["=1"], "NAME=VALUES"), (["a=1", "a=2"], "twice")])
def test_assignments_are_checked(words, message):
    with pytest.raises(InputError, match=message):
        assignments(words)


def test_grid_has_all_combinations_and_needs_counts():
    points = grid(parse(DATE, {"optim.learning-rate": "1e-3..1e-1:log:3", "model.hidden-size": "8,16"}))
    assert [tuple(point.values()) for point in points] == [(r, h) for r in (0.001, 0.01, 0.1) for h in (8, 16)]
    ends = grid(parse(DATE, {"optim.learning-rate": "0.0001234564..0.0123456789:log:2"}))
    assert [point["optim.learning_rate"] for point in ends] == [0.0001234564, 0.0123456789], "rounded ones lie outside"
    with pytest.raises(InputError, match="how many values"):
        grid(parse(DATE, {"optim.learning-rate": "1e-3..1e-1"}))


def test_a_space_survives_being_written_down():
    over = {"optim.learning-rate": "1e-4..1e-2:log:5", "model.hidden-size": "8..64"}
    over |= {"data.reverse-source": "true,false", "model.score": "dot"}
    space = parse(DATE, over)
    assert parse(DATE, format_space(space)) == space


def test_labels_tell_same_named_parameters_apart():
    assert label({"model.dropout": 0.1, "data.dropout": 0.2}) == "model.dropout=0.1 data.dropout=0.2"


@pytest.mark.parametrize("values", ["0..1.5", "-0.5..0.5", "0.1,0.2,1.5"])
def test_range_ends_and_list_values_are_validated(values):
    with pytest.raises(InputError, match="--train.label-smoothing"):
        parse(DATE, {"train.label-smoothing": values})


@pytest.mark.parametrize("path", ["../a.tsv", "a..b.tsv", "x/../a.tsv"])
def test_path_with_two_dots_is_no_range(path):
    config = Config("translate_files", Corpus(), LuongSeq2seqConfig())
    assert parse(config, {"data.tsv-file": path}) == {"data.tsv_file": Values((path,))}


@pytest.mark.parametrize(
    "text, values",
    [
        ("dot,general", ["dot", "general"]),
        ("mine.ideas:Two(0.1,0.2),scaled_dot", ["mine.ideas:Two(0.1,0.2)", "scaled_dot"]),
        ("mine:A((1,2),[3,4]),mine:B()", ["mine:A((1,2),[3,4])", "mine:B()"]),
        ("mine:A(1,2)", ["mine:A(1,2)"]),
    ],
)
def test_commas_in_parentheses_belong_to_a_value(text, values):
    space = parse(DATE, {"model.score": text})
    assert space["model.score"].choices == tuple(values)
    assert parse(DATE, format_space(space)) == space


@pytest.mark.parametrize(
    "over, dense",
    [
        ("model.score = dot, general", "model.score=dot,general"),
        ("data.reverse-source=true , false", "data.reverse-source=true,false"),
        ("optim.learning-rate=1e-3, 1e-2", "optim.learning-rate=1e-3,1e-2"),
        ("model.hidden-size= 4 .. 8 : 3 ", "model.hidden-size=4..8:3"),
        ("optim.learning-rate=1e-4 .. 1e-2 : log : 5", "optim.learning-rate=1e-4..1e-2:log:5"),
        ("optim.name=adam, sgd", "optim.name=adam,sgd"),
    ],
)
def test_spaces_change_no_space(over, dense):
    assert parse(DATE, assignments([over])) == parse(DATE, assignments([dense]))


def test_a_name_without_values_is_refused():
    with pytest.raises(InputError, match="NAME=VALUES"):
        assignments(["model.score= "])
