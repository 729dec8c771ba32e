"""`attend` has the properties of tests/ops/cases.py for every entry of the table in blocks, and for some in every other
way. In the slow tier Hypothesis draws any case."""

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from attention_jax.ops import biases, normalizers, pooling, scores
from attention_jax.ops.normalizer_kinds import Normalizer
from tests.ops import oracle
from tests.ops.cases import COLUMNS, KERNEL_SHAPES, Case, check, cover, is_valid

FUSED = cover(0, *COLUMNS, way="fused")
OTHERS = [
    *cover(1, "normalizer", "pool", "bias", "mask", way="plain"),
    *cover(2, "offset", "extras", way="vmap", pool="Mean"),
    *cover(3, "extras", way="heads", pool="Mean"),
    *cover(4, "extras", way="shard_map", pool="Mean"),
]

AS_USERS_DO = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""XLA's own options: those of conftest.py compile without optimization."""
if jax.__version__.startswith("0.10."):
    AS_USERS_DO["xla_cpu_use_fusion_emitters"] = True


@pytest.mark.parametrize("case", [*FUSED, *OTHERS], ids=lambda case: ", ".join(map(str, case)))
def test_attend_has_all_properties(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FUSED[::3], ids=lambda case: ", ".join(map(str, case)))
def test_optimized_programs_have_them_too(case):
    """XLA's optimization may reorder sums and contract products."""
    check(case, **AS_USERS_DO)


@pytest.mark.slow
@settings(max_examples=15, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.builds(Case, **{name: st.sampled_from(column) for name, column in COLUMNS.items()}).filter(is_valid))
def test_any_case_has_all_properties(case):
    check(case)


def test_the_table_has_every_rule():
    """Every public score, bias, normalizer and pooling has a formula in the oracle, and is in a case in blocks."""
    bases = {"Bias", "Normalizer", "Ordered", "Pointwise", "Pool", "Ratio", "Score", "Threshold"}
    for module, formulas, base in (
        (scores, oracle.SCORES, scores.Score),
        (biases, oracle.BIASES, biases.Bias),
        (normalizers, oracle.NORMALIZERS, Normalizer),
        (pooling, oracle.POOLS, pooling.Pool),
    ):
        classes = {name for name in module.__all__ if isinstance(getattr(module, name), type)}
        assert {name for name in classes if issubclass(getattr(module, name), base)} - bases <= set(formulas)
    for name, column in COLUMNS.items():
        if name != "way":
            assert {getattr(case, name) for case in FUSED} == set(column) - set(KERNEL_SHAPES)
