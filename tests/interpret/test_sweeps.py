"""Sweeps are one run of the model after the other, in one program; 5 CPU-seconds by default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import EVERY, family, language_model, measure, precision, random_params

from attention_jax import InputError, interpret
from attention_jax.interpret import Part, sweeps

OVER = ["heads", "positions", ("heads", "positions"), ("positions", "heads")]


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_a_sweep_equals_single_runs(name, dtype):
    """Ablated, and in float32 patched at one position; one at a time by one program, with masks of no heads."""
    with precision(dtype):
        model, params, batch, other_batch = family(name, dtype)
        source = interpret.trace(model, params, *other_batch, sites="*head_output")
        zeros = {site: np.zeros_like(x) for site, x in source.items()}

        @jax.jit
        def measure_place(values, masks):
            edits = {site: Part(x, where=masks[site]) for site, x in values.items()}
            return measure(interpret.run(model, params, *batch, set=edits)[0])

        nowhere = {site: np.zeros((1, *x.shape[1:3], 1), bool) for site, x in source.items()}
        for patch_source, over in ((None, OVER[0]), (source, OVER[2]))[: 2 if dtype == "float32" else 1]:
            swept = interpret.patch_sweep(model, params, *batch, measure=measure, source=patch_source, over=over)
            assert [*swept] == [*source]
            for site, measures in swept.items():
                by_place = measures[None] if over == "heads" else measures.swapaxes(0, 1)
                assert by_place.shape[1] == source[site].shape[2]
                for (position, head), value in np.ndenumerate(by_place):
                    mask = nowhere[site].copy()
                    mask[0, slice(None) if over == "heads" else position, head] = True
                    single = measure_place(zeros if patch_source is None else source, nowhere | {site: mask})
                    np.testing.assert_allclose(value, single, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def small():
    model = language_model(scan_layers=True, per_layer="1:mask=window(1)")
    batch, other_batch = jnp.array([[1, 2, 3, 4]]), jnp.array([[5, 2, 7, 4]])
    return model, random_params(model, (batch,)), batch, other_batch


def logit(output):
    return output[0, -1, 3]


@pytest.mark.slow
def test_edges_are_those_that_exist(small):
    """A query's edges to keys after it, and beyond the window, leave the measure as it is; the others are single runs,
    whose edge of scores is masked and of weights zero."""
    model, params, batch, _ = small
    site = "decoder.1.scores"
    swept = interpret.patch_sweep(model, params, batch, measure=logit, sites=site, over="edges")[site]
    assert swept.shape == (2, 4, 4)
    allowed = np.tril(np.ones((4, 4), bool)) & ~np.tril(np.ones((4, 4), bool), -2)
    mask = lambda head, query, key: jnp.zeros((1, 2, 4, 4), bool).at[0, head, query, key].set(True)
    run = jax.jit(
        lambda mask: logit(interpret.run(model, params, batch, set={site: Part(jnp.float32(-jnp.inf), mask)})[0])
    )
    plain = run(jnp.zeros((1, 2, 4, 4), bool))
    for (head, query, key), value in np.ndenumerate(np.asarray(swept)):
        expected = run(mask(head, query, key)) if allowed[query, key] else plain
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    changed = np.abs(np.asarray(swept) - plain) > 1e-6
    assert not changed[:, ~allowed].any() and changed[:, -1, 2:].all()


@pytest.mark.slow
def test_edges_of_given_queries_and_under_jit(small):
    model, params, batch, other_batch = small
    site = "decoder.0.weights"
    source = interpret.trace(model, params, other_batch, sites=site)
    sweep = lambda batch, **options: interpret.patch_sweep(
        model, params, batch, measure=lambda x: x[0, -1], source=source, sites=site, over="edges", **options
    )[site]
    swept = sweep(batch)
    assert swept.shape == (2, 4, 4, 11)
    np.testing.assert_allclose(sweep(batch, positions=[-1, 1]), swept[:, [3, 1]], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.jit(sweep)(batch), swept, rtol=1e-5, atol=1e-5)


def test_batches_of_a_sweep_are_equal_and_fit_the_budget(small, monkeypatch):
    """17 places in at most 8 at a time are 3 batches of 6, one of them with a place that is nowhere."""
    model, params, batch, _ = small
    sizes = []
    run_places = lambda *args: sizes.append((args[5], len(args[-1]))) or jnp.zeros(len(args[-1]))
    monkeypatch.setattr(sweeps, "_run_places", run_places)
    sweep = lambda **options: interpret.patch_sweep(model, params, batch, measure=logit, **options)
    sweep(sites="decoder.*.residual_in", over="positions", together=3)
    assert sizes == [(3, 9)]  # two layers of four positions
    monkeypatch.setattr(sweeps, "BUDGET", 5 * sweeps.run_bytes(interpret.sites.find_sites(model, params, (batch,))))
    sweep(sites="decoder.*.residual_in", over="positions")
    sweep(sites="decoder.0.residual_in", over="positions")
    assert sizes[1:] == [(4, 8), (4, 4)]


MISUSES = {
    "no heads": (
        {"sites": "*.residual_in"},
        "over heads needs sites with heads, as head_output; decoder.0.residual_in",
    ),
    "no keys": ({"sites": "*.query", "over": "edges"}, "over edges needs sites with keys, as scores and weights"),
    "no axis": ({"over": None}, "both or edges, got None"),
    "another axis": ({"over": "layers"}, "is over heads, positions, both or edges, got 'layers'"),
    "an axis twice": ({"over": ("heads", "heads")}, "both or edges"),
    "beyond the text": ({"over": "positions", "positions": 9}, "positions 0 to 3 in this call, got position 9"),
    "none at a time": ({"together": 0}, "at least 1, got 0"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_what_cannot_be_swept(case, small):
    model, params, batch, _ = small
    options, message = MISUSES[case]
    with pytest.raises(InputError, match=message):
        interpret.patch_sweep(model, params, batch, measure=logit, **options)


def test_a_drawn_sweep_has_layers_positions_and_a_color_bar(tmp_path, monkeypatch):
    figure = {}
    monkeypatch.setattr(sweeps, "show_heatmaps", lambda *args, **options: figure.update(options, args=args))
    swept = {f"decoder.{i}.{kind}": np.arange(3.0) - i for i in range(2) for kind in ("residual_in", "mlp_output")}
    sweeps.draw_sweep(swept, tmp_path / "a.svg", over="positions", tokens=["a", "b", "c"], title="IOI")
    [heatmaps] = figure["args"][0]
    np.testing.assert_array_equal([x.weights for x in heatmaps], [[[0, 1, 2], [-1, 0, 1]]] * 2)
    assert [(x.queries, x.keys) for x in heatmaps] == [(["0", "1"], ["a", "b", "c"])] * 2
    assert [x.title for x in heatmaps] == ["IOI: decoder residual_in", "IOI: decoder mlp_output"]
    assert (figure["xlabel"], figure["ylabel"], figure["limits"]) == ("position", "layer", (-2.0, 2.0))
    by_head = sweeps.Sweep({site.replace("residual", "head"): x for site, x in swept.items()}, ("heads",))
    for swept_values in (by_head, jax.tree.map(jnp.asarray, by_head)):  # also after a transformation
        sweeps.draw_sweep(swept_values, tmp_path / "a.svg")
        assert figure["xlabel"] == "head"
    misuses = (
        ("a.png", by_head, "positions", "this sweep went over heads, got over='positions': leave it out"),
        ("a.png", sweeps.Sweep(swept, sweeps.EDGES), None, "over positions or heads can be drawn, got .*keys"),
        ("a.png", swept, None, "can be drawn, got a dict: pass over='heads' or over='positions'"),
        ("a.doc", swept, "heads", "ends in .png"),
        ("a.png", {"x": np.ones((2, 2))}, "heads", "one number"),
        ("a.png", swept, "edges", "over positions or heads can be drawn, got 'edges'"),
    )
    for path, values, over, message in misuses:
        with pytest.raises(InputError, match=message):
            sweeps.draw_sweep(values, tmp_path / path, over=over)


def test_negative_positions_are_from_the_end_of_each_text(small):
    """Of a padded batch: what a text of it has is what it has alone."""
    model, params, _, _ = small
    texts = [[1, 2, 3, 4, 5, 6, 7], [5, 2, 7, 4]]
    padded = interpret.Batch(jnp.array([row + [0] * (7 - len(row)) for row in texts]), jnp.array([7, 4]))
    for sites, over in (("decoder.0.residual_in", "positions"), ("decoder.1.scores", "edges")):
        options = {"sites": sites, "over": over, "positions": [-1, -3]}
        swept = interpret.patch_sweep(
            model, params, padded, measure=lambda logits: padded.last(logits)[:, 3], **options
        )[sites]
        alone = interpret.patch_sweep(model, params, jnp.array(texts[1:]), measure=logit, **options)[sites]
        places = np.s_[:, :, :4] if over == "edges" else np.s_[:]
        np.testing.assert_allclose(swept[..., 1][places], alone, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="positions 0 to 3 in this call, got position -5"):
        interpret.patch_sweep(model, params, padded, measure=jnp.sum, sites=sites, over="edges", positions=-5)
