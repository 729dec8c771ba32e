"""What NAME.toml may state, and what is one line of error."""

import json

import pytest

from attention_jax import catalog
from attention_jax.declarations import Claim, load_declarations, peer_values
from attention_jax.errors import InputError

CLAIM = {"text": "x", "metric": "m", "published": 1.0, "source": "s"}
TOML = """
times = ["seconds"]

[former]
"old name" = "new name"

[defaults]
source = "table 1"
basis = "code"
theory = true

[[claim]]
text = "a number"
metric = "test.bleu"
published = 39
also = ["valid.bleu"]

[[claim]]
text = "its own"
metric = "test.bleu"
source = "table 2"
sign = -1

[[threshold]]
text = "a bound"
metric = "error"
at_most = 1e-6
"""


def load(tmp_path, text: str):
    (tmp_path / "mine.toml").write_text(text)
    return load_declarations(tmp_path / "mine.toml")


def test_defaults_hold_where_nothing_is_stated(tmp_path):
    declared = load(tmp_path, TOML)
    first, second = declared["claims"]
    assert (first.source, first.basis, first.also) == ("table 1", "code", ("valid.bleu",))
    assert (second.source, second.sign, second.published) == ("table 2", -1, None)
    [bound] = declared["thresholds"]
    assert bound.theory and bound.source == "table 1" and bound.at_most == 1e-6
    assert declared["former_variants"] == {"old name": "new name"} and declared["times"] == ("seconds",)
    assert load_declarations(tmp_path / "absent.toml")["claims"] == ()


@pytest.mark.parametrize(
    "text, words",
    [
        ("[[claim]]\ntext = 1 2", "mine.toml is no TOML"),
        ("[[claims]]\ntext = 'x'", "mine.toml has claims: it takes"),
        (TOML + "\n[[claim]]\ntext = 'late'\nkind = 'aim'", "mine.toml: 'late'.*kind"),
        (TOML + "\n[[threshold]]\ntext = 'empty'\nmetric = 'm'", "'empty' needs `at_least` or `at_most`"),
    ],
)
def test_unreadable_entry_is_one_line(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        load(tmp_path, text)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"published": None}, "needs `published`"),
        ({"basis": "guessed"}, "basis 'guessed'"),
        ({"runs": (2.0, 3.0)}, "among its runs; got 1.0"),
        ({"best": True, "epoch": 2}, "more than one of"),
        ({"also": ("b",), "last": 2}, "more than one of"),
        ({"metric": "test_2017.bleu", "best": True}, "best epoch of test_2017.bleu"),
    ],
)
def test_claim_without_comparison_is_refused(fields, words):
    with pytest.raises(InputError, match=words):
        Claim(**CLAIM | fields)


def test_runs_of_the_source_are_read_from_its_file(tmp_path):
    histories = {"plain": [[0.1, 0.2, 0.6], [0.3, 0.4, 0.5]]}
    seeds, runs = [{"loss": 1.0}, {"loss": 2.0}], {"9.6 RNN": [{"last": 7.0, "rate": 1.0}, {"last": 8.0, "rate": 2.0}]}
    (tmp_path / "results").mkdir()
    for name, content in {"h": {"histories": histories}, "s": {"seeds": seeds}, "r": {"runs": runs}}.items():
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(content))
    values = lambda name, *keys, **selection: peer_values(tmp_path / "results" / f"{name}.json", keys, selection)
    assert values("h", "plain", epoch=1) == (0.1, 0.3) and values("h", "plain", last=2) == (0.4, 0.45)
    assert values("s", "loss") == (1.0, 2.0) and values("r", "9.6 RNN", "last") == (7.0, 8.0)
    assert values("r", "9.6 RNN", "last", "rate", 2.0) == (8.0,), "the runs with this setting"
    [claim] = load(tmp_path, '[[claim]]\ntext = "x"\nmetric = "m"\nsource = "s"\npeer = ["s.json", "loss"]')["claims"]
    assert claim.runs == (1.0, 2.0) and claim.published == 1.5


EXPERIMENTS = [catalog.load_experiment(name) for name in catalog.experiment_names()]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_declared_quantities_are_of_existing_variants(experiment):
    """No two variants have one configuration: a second name would give it a second chance; add seeds instead."""
    variants = experiment.variants()
    quantities = (*experiment.claims, *experiment.thresholds)
    assert {name for quantity in quantities for name in (quantity.variant, quantity.minus)} <= {*variants, None}
    assert {*experiment.former_variants.values()} <= {*variants} - experiment.former_variants.keys()
    assert len({quantity.text for quantity in quantities}) == len(quantities), "two statements have one text"
    configs = list(variants.values())
    assert not [config for index, config in enumerate(configs) if config in configs[:index]]


def test_headlines_fit_into_the_figure_and_readme():
    claims = [claim for e in EXPERIMENTS for claim in e.claims if not claim.sign and claim.basis != "count"]
    assert all(0 < len(claim.headline) <= 45 for claim in claims) and len({claim.headline for claim in claims}) == 36
    assert all(len(claim.differs.partition(";")[0]) <= 90 for claim in claims), "one clause before the first semicolon"
    assert 8 <= sum(claim.in_readme for claim in claims) <= 12
