"""The comparison of compiled programs: the peers are the same models, and a table can be had without any chip."""

import jax
import jax.numpy as jnp
import pytest

from attention_jax.errors import InputError
from attention_jax.models.transformer import count_parameters
from benchmarks import compile as bench_compile


@pytest.mark.slow
@pytest.mark.parametrize("case", bench_compile.CASES)
def test_peers_match_parameter_counts_and_inputs(case):
    with jax.numpy_dtype_promotion("standard"):  # as Flax itself needs it
        programs = bench_compile.CASES[case](2)
    assert {count_parameters(program.shapes[0]) for program in programs.values()} == {
        count_parameters(programs["ours"].shapes[0])
    }
    batches = [jax.tree.leaves(program.shapes[1:]) for program in programs.values()]
    assert batches[0] == batches[1] == batches[2] and len(programs) == 3
    loss, _ = jax.eval_shape(programs["ours"].function, *programs["ours"].shapes)
    assert loss.shape == ()


def test_what_is_not_known_is_named():
    with pytest.raises(InputError, match="--cases knows vit_s"):
        bench_compile.main(cases=("vit",))
    with pytest.raises(InputError, match="perhaps you meant h200"):
        bench_compile.main(targets=("h20",))


def test_row_has_measurements_or_compile_error(monkeypatch, tmp_path, capsys):
    """On a CPU, which needs no other compiler."""
    x = bench_compile.shape(64, 64, dtype=jnp.float32)
    program = bench_compile.Program(lambda x: x @ x @ x, (x,))

    def raise_error(x):
        raise NotImplementedError("no such kernel")

    refusing = bench_compile.Program(raise_error, (x,))
    monkeypatch.setitem(
        bench_compile.CASES, "tiny", lambda layers: {"flax": program, "ours": program, "flax, usual": refusing}
    )
    flax, package, usual = bench_compile.main(cases=("tiny",), targets=("cpu",), output=str(tmp_path))
    assert package["flops"] == flax["flops"] == 2 * 2 * 64**3
    assert usual["error"] == "no such kernel" and "1.00x" in capsys.readouterr().out
    assert (tmp_path / "cpu.json").exists()
