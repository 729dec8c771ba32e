"""`launch.py bench registers`: its kernels are those of a call, its arithmetic that of NVIDIA's tables, and where the
compilers are, kernels of dot products need no memory for registers."""

import jax
import pytest

from attention_jax.errors import InputError
from benchmarks import registers
from benchmarks._targets import CHIPS
from benchmarks.registers import Usage

DOTS = [name for name in registers.cases() if name.startswith("dot/")]


@pytest.mark.slow
def test_kernels_are_output_and_gradients_of_call():
    case = registers.cases()["alibi/learned"]._replace(length=64, width=16)
    kernels = registers.kernels_of(registers.lower(case))
    assert {kernel.name: kernel.warps for kernel in kernels} == {
        "attend": 4,
        "query_gradient": 4,
        "key_gradient": 4,
    }
    assert len(kernels) == 3 and all(kernel.code and kernel.stages == 2 for kernel in kernels)


@pytest.mark.parametrize(
    ("usage", "card", "blocks"),
    [
        (Usage(32, 0, 0, 0, 0, 1), "h100", 32),  # no multiprocessor has more blocks
        (Usage(168, 0, 40 * 1024, 0, 0, 4), "h100", 3),  # 65536 // (168 * 128) registers
        (Usage(169, 0, 40 * 1024, 0, 0, 4), "h100", 2),  # 176, a multiple of 8
        (Usage(64, 0, 40 * 1024, 0, 0, 4), "h100", 5),  # 228 // 41 KiB
        (Usage(64, 0, 40 * 1024, 0, 0, 4), "a100", 4),  # 164 // 41
        (Usage(16, 0, 0, 0, 0, 16), "a100", 4),  # 2048 // 512 threads
        (Usage(32, 0, 232448, 0, 0, 4), "h100", 1),
        (Usage(32, 0, 232448 + 1024, 0, 0, 4), "h100", 0),  # does not fit
    ],
)
def test_resident_blocks_follow_occupancy_table(usage, card, blocks):
    assert registers.resident_blocks(usage, CHIPS[card]) == blocks


def test_tables_show_numbers_and_failures(monkeypatch, capsys):
    usage = Usage(168, 8, 40 * 1024, 16, 2, 4, 473, 24, 3)
    row = {card: dict.fromkeys(registers.KERNELS, usage) for card in ("h100", "a100")}
    monkeypatch.setattr(registers, "absent_compiler", lambda: None)
    monkeypatch.setattr(registers, "ptxas_version", lambda: "12.9.86")
    outcomes = iter([row | {"problem": ""}, {"problem": "not done within 600 s"}])
    monkeypatch.setattr(registers, "run_in_process", lambda function, limit: next(outcomes))
    registers.main(only=("soft_cap/1023x64", "sparsemax/1023x64"), card=("a100",))
    text = capsys.readouterr().out
    assert "ptxas 12.9.86" in text and "h100" not in text and "| a100, sm_80 |" in text
    assert "| soft_cap/1023x64 | 64 x 64, 4/4/4 |" + " 168 / 8 / 40 / 3 / 16 wgmma + 2 mma / 473 / 24 / 3 |" * 3 in text
    assert "| sparsemax/1023x64 | 64 x 64 | not done within 600 s |  |  |" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("dots",)}, "--only dots selects nothing: dot/full/2048x64"),
        ({}, r"compilers of CUDA kernels, ptxas is not installed: pip install \"jax\[cuda12\]==0.10.2\""),
    ],
)
def test_bad_option_and_absent_compiler_are_one_line(options, message, monkeypatch):
    monkeypatch.setattr(registers, "absent_compiler", lambda: "ptxas is not installed")
    monkeypatch.setattr(registers, "run_in_process", None)
    with pytest.raises(InputError, match=message) as error:
        registers.main(**options)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOTS)
def test_dot_products_fit_registers_and_shared_memory(name):
    """No register is spilled, shared memory is what a block may have, and products are those of tensor cores; nothing
    is rounded between them by the slow unit."""
    if reason := registers.absent_compiler():
        pytest.skip(f"needs the compilers of CUDA kernels: {reason}")
    usages = registers.usages(name, ("h100", "a100"))
    for card, shared in (("h100", 232_448), ("a100", 166_912)):
        assert set(usages[card]) == {"attend", "query_gradient", "key_gradient"}
        for kernel, usage in usages[card].items():
            assert usage.spilled == 0 and usage.f2f == 0 and usage.warps == 4, (card, kernel, usage)
            assert usage.shared <= shared and (usage.wgmma if card == "h100" else usage.mma), (card, kernel, usage)
            assert registers.resident_blocks(usage, CHIPS[card]) >= 1, (card, kernel, usage)


@pytest.mark.slow
def test_highest_precision_is_on_tensor_cores():
    """As three products of TF32 each."""
    if reason := registers.absent_compiler():
        pytest.skip(f"needs the compilers of CUDA kernels: {reason}")
    counts = []
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            kernel = registers.kernels_of(registers.lower(registers.cases()["dot/causal/float32"]))[0]
        counts.append(registers.compile_kernel(kernel, CHIPS["h100"]).wgmma)
    assert counts[1] == 3 * counts[0] > 0
