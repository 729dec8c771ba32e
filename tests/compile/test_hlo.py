"""What is counted in a program's text: held against programs counted by hand, compiled for this CPU or written here."""

import jax
import jax.numpy as jnp
import pytest

from attention_jax.compile import hlo, instructions, products
from attention_jax.compile.report import DoesNotFit, compile_for, finish, report
from attention_jax.compile.targets import parse

CPU = parse("cpu")
f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)

LOOP = """HloModule loop, is_scheduled=true

%body (p: (s32[], f32[8,196], f32[5,8,196])) -> (s32[], f32[8,196], f32[5,8,196]) {
  %p = (s32[], f32[8,196]{1,0:T(8,128)}, f32[5,8,196]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,196]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %all = f32[5,8,196]{2,1,0:T(8,128)} get-tuple-element(%p), index=2
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %row = f32[1,8,196]{2,1,0:T(8,128)} dynamic-slice(%all, %i, %zero, %zero), dynamic_slice_sizes={1,8,196}
  %flat = f32[8,196]{1,0:T(8,128)} bitcast(%row)
  %sum = f32[8,196]{1,0:T(8,128)} add(%x, %flat), metadata={op_name="jit(f)/while/body/jvp(Net)/layer_0/add"}
  %all-reduce.1 = f32[8,196]{1,0:T(8,128)S(1)} all-reduce(%sum), replica_groups={{0,1}}, to_apply=%add
  %back = f32[8,196]{1,0:T(8,128)} copy(%all-reduce.1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[8,196]{1,0:T(8,128)}, f32[5,8,196]{2,1,0:T(8,128)}) tuple(%next, %back, %all)
}

%condition (q: (s32[], f32[8,196], f32[5,8,196])) -> pred[] {
  %q = (s32[], f32[8,196]{1,0:T(8,128)}, f32[5,8,196]{2,1,0:T(8,128)}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (a: f32[8,196], b: f32[5,8,196]) -> f32[8,196] {
  %a = f32[8,196]{1,0:T(8,128)} parameter(0)
  %b = f32[5,8,196]{2,1,0:T(8,128)} parameter(1)
  %start = s32[] constant(0)
  %first = (s32[], f32[8,196]{1,0:T(8,128)}, f32[5,8,196]{2,1,0:T(8,128)}) tuple(%start, %a, %b)
  %loop = (s32[], f32[8,196]{1,0:T(8,128)}, f32[5,8,196]{2,1,0}) while(%first), body=%body, condition=%condition
  ROOT %out = f32[8,196]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""
"""A row is as large as its tiles, 8 x 256 numbers; the sum that crosses the devices lies outside the main memory."""
ROW = 8 * 256 * 4


def test_a_loop_counts_as_often_as_its_condition_lets_it_turn():
    cost = hlo.Program(LOOP).cost
    scalars = 5 * (4 + 4 + 4 + 4 + 4 + 1)  # the counter: two reads and a write; its comparison
    assert cost.bytes == 5 * (2 + 3 + 1 + 1) * ROW + scalars  # slice, sum, what the sum over devices reads, copy
    assert not cost.unknown
    assert hlo.Program(LOOP).collectives() == [hlo.Collective("all-reduce", 5, 5 * ROW, ROW)]


def test_what_the_compiler_tells_of_a_loop_is_believed_first():
    told = LOOP.replace("condition=%condition", 'condition=%condition, backend_config={"known_trip_count":{"n":"7"}}')
    assert hlo.Program(told).collectives()[0].number == 7


def test_a_loop_that_may_stop_early_counts_as_many_turns_as_there_are_slices():
    text = LOOP.replace("%start = s32[] constant(0)", "%start = s32[] parameter(2)")
    cost = hlo.Program(text).cost
    assert cost.unknown == {hlo.MAY_STOP: 1} and cost.collectives == {("all-reduce", ROW): 5}
    several = text.replace("f32[5,8,196]", "f32[9,8,196]")
    assert hlo.Program(several).cost.collectives == {("all-reduce", ROW): 9}


def test_a_loop_whose_turns_nobody_tells_counts_once_and_is_said():
    text = LOOP.replace("%start = s32[] constant(0)", "%start = s32[] parameter(2)")
    cost = hlo.Program(text.replace("{1,8,196}", "{2,8,196}").replace("%row = f32[1", "%row = f32[2")).cost
    assert cost.unknown == {hlo.NOT_TOLD: 1} and cost.collectives == {("all-reduce", ROW): 1}


def test_the_shortest_of_two_conditions_is_a_bound():
    both = LOOP.replace("  ROOT %lt = pred[] compare(%j, %n)", "  %lt = pred[] compare(%j, %n)").replace(
        ", direction=LT\n", ", direction=LT\n  %go = pred[] custom-call(%q)\n  ROOT %both = pred[] and(%lt, %go)\n"
    )
    assert hlo.Program(both).cost.unknown[hlo.MAY_STOP] == 1
    assert hlo.Program(both).cost.collectives == {("all-reduce", ROW): 5}


def test_the_largest_buffers_are_named_by_their_place_in_the_model():
    largest = hlo.Program(LOOP).largest(2)
    assert [(b.bytes, b.shape, b.place) for b in largest] == [
        (ROW, "f32[8,196]", "Net/layer_0/add"),
        (ROW, "f32[8,196]", "copy"),
    ]


def scanned(w, xs):
    """Five products of [64, 32] with [32, 32], one a turn."""
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), xs, length=5)[0]


@pytest.fixture(scope="module")
def compiled():
    return compile_for(CPU, scanned, f32(32, 32), f32(64, 32))


def test_products_of_a_compiled_scan(compiled):
    found = report(compiled, CPU)
    assert found.products == {"f32": 5 * 2 * 64 * 32 * 32} and not found.unknown
    assert found.arguments == 4 * (32 * 32 + 64 * 32) and found.output == 4 * 64 * 32
    assert found.bytes_accessed > 5 * 4 * (32 * 32 + 64 * 32)
    assert found.fits and found.least_seconds == 0  # nobody publishes what the room's CPU can do


def test_products_of_batches_convolutions_and_their_gradients():
    def loss(x, kernel, q, k):
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y.sum() + (jnp.einsum("bhqd,bhkd->bhqk", q, k) ** 2).sum()

    shapes = f32(2, 8, 8, 3), f32(3, 3, 3, 5), f32(2, 3, 7, 4), f32(2, 3, 6, 4)
    forward = compile_for(CPU, lambda *x: loss(*x), *shapes)
    convolution, product = 2 * (2 * 6 * 6 * 5) * (3 * 3 * 3), 2 * 2 * 3 * 7 * 6 * 4
    assert report(forward, CPU).flops == convolution + product
    backward = compile_for(CPU, jax.grad(loss, argnums=(1, 2, 3)), *shapes)
    assert report(backward, CPU).flops == convolution + 3 * product  # of the convolution only the kernel's gradient


def test_windows_full_of_holes_count_what_they_meet():
    """A TPU writes batches of products so: 6 of them along an axis, of which each place meets its own."""
    text = """ENTRY %main (a: bf16[6,8,4], b: bf16[6,4,8]) -> bf16[6,8,8] {
  %a = bf16[6,8,4]{2,1,0} parameter(0)
  %b = bf16[6,4,8]{2,1,0} parameter(1)
  ROOT %c = bf16[6,8,8]{2,1,0} convolution(%a, %b), dim_labels=0bf_0io->0bf, window={size=6 stride=5 lhs_dilate=6}
}
"""
    assert hlo.Program(text).cost.products == {"bf16": 6 * 2 * 8 * 4 * 8}


def test_cards_call_libraries_for_their_products():
    lines = instructions.computations("""ENTRY %main (a: bf16[16,8]) -> bf16[16,4] {
  %a = bf16[16,8]{1,0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %q = bf16[2,196,6,64]{3,2,1,0} parameter(2)
  %m = (bf16[16,4]{1,0}, s8[33554432]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %f = (bf16[2,6,196,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "6", "196", "196"]}}}
  ROOT %r = bf16[16,4]{1,0} custom-call(%a), custom_call_target="mine"
}
""")[0]["main"]  # noqa: E501
    assert products.products_of(lines["m"], lines) == {"bf16": 2 * 16 * 8 * 4}
    assert products.products_of(lines["f"], lines) == {"bf16": 2 * 2 * 2 * 6 * 196 * 196 * 64}
    assert not products.foreign(lines["m"]) and products.foreign(lines["r"]) == {"operations of mine": 1}


def test_a_compiler_that_runs_out_of_memory_says_what_it_needs():
    class Refuses:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm. Exceeded by 4.75G.")

    with pytest.raises(DoesNotFit, match=r"needs 20.50 GiB of 15.75 GiB"):
        finish(Refuses(), CPU)
