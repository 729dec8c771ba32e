"""Strict JAX for every test: no silent promotion of dtypes or ranks. CPU only, so that results do not depend on the
machine, unless the tests of a GPU are asked for: `python -m pytest -m gpu` (cards.py)."""

import atexit
import contextlib
import ctypes
import gc
import importlib.metadata
import os
import shutil
import signal
import tempfile
from pathlib import Path

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # the workers of one session and the processes they start compile nothing twice
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # to store less costs more than to compile it
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # begun by a script in the background: the processes that tests start and interrupt would be deaf, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # of the workers: XLA's threads would keep an arena each
os.environ.setdefault("NPROC", "8")  # emulated devices need at least two threads each, or jax 0.10 can hang

import jax
import pytest
from cards import Cards, has_card, is_requested
from costs import Costs

# tracing makes many small objects, and JAX does work of its own at each collection
gc.set_threshold(200_000, 50, 1000)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    parser.addoption("--costs", type=int, nargs="?", const=20, metavar="ROWS", help="print what each test costs")


class Memory:
    """A worker forgets its compiled programs between two files if they take much memory: all would take 4 GB."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        if nextitem is not None and nextitem.path != item.path and resident_bytes() > 2e9:
            jax.clear_caches()
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # glibc keeps what was freed
                ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident_bytes() -> float:
    """The memory of this process; 0 where it is not known."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0.0


def choose_platform(expression: str) -> None:
    """Set what jax and the processes that tests start read: a CPU, or for `-m gpu` whatever jax finds."""
    if is_requested(expression):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several workers share the card
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])  # jax was imported before
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # tests mostly compile
    flags += " --xla_cpu_parallel_codegen_split_count=1"  # programs of a few lines
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        # the old emitters need a third of the time; later versions end at a flag that they do not know
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", flags)


def pytest_configure(config):
    choose_platform(config.getoption("markexpr"))  # a worker of pytest-xdist has the option, but no command line
    config.pluginmanager.register(Cards(config.getoption("markexpr"), has_card()))
    config.pluginmanager.register(Memory())
    if config.getoption("--costs") is not None:
        config.pluginmanager.register(Costs(config.getoption("--costs")))


def pytest_collection_modifyitems(config, items):
    """Tests of Gemma, whose file has terms of use, and all cases of generated kernels take many minutes: they run on
    request, `-m gemma` and `-m kernels`."""
    for name in ("gemma", "kernels"):
        if name not in config.getoption("markexpr"):
            items[:] = [item for item in items if item.get_closest_marker(name) is None]


class Changed:
    """A task with some of its names replaced."""

    def __init__(self, task, **changes):
        self.__dict__ |= {"task": task, **changes}

    def __getattr__(self, name):
        return getattr(self.task, name)


@pytest.fixture(scope="session")
def with_attributes():
    """`with_attributes(task, loss=...)` is the task with another loss."""
    return Changed


@pytest.fixture(scope="session")
def contract():
    """`check`, and the small batch it uses."""
    import contract

    return contract


@pytest.fixture
def cudnn_installed(monkeypatch):
    """Make JAX believe that cuDNN and a Hopper are there, for tracing and lowering, and `attend` take all products."""
    from attention_jax.ops import dispatch
    from attention_jax.ops.kernels import cudnn

    monkeypatch.setattr(dispatch, "PRODUCTS_BY_DEFAULT", True)

    wrapper = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    for name, answer in {
        "check_cudnn_version": 91100,
        "check_compute_capability": True,
        "is_cuda_compute_capability_equal": False,
    }.items():
        monkeypatch.setattr(wrapper, name, lambda *_, answer=answer: answer, raising=False)
    cudnn.missing.cache_clear()
    yield
    cudnn.missing.cache_clear()


@pytest.fixture
def cpu_alone(monkeypatch):
    """Blockwise attention is traced for a CPU alone, not for GPUs and TPUs besides, which takes a third of the time."""
    from attention_jax.ops import attention
    from attention_jax.ops.blockwise import derivatives

    for module in (attention, derivatives):
        monkeypatch.setattr(module, "by_platform", lambda run, choice, *args: run(choice["cpu"], *args))


@pytest.fixture
def hangup():
    """SIGHUP ends a process, also where the tests themselves were started by `nohup`, which ignores it."""
    old_handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, old_handler)


@pytest.fixture(scope="session", autouse=True)
def _data_home(tmp_path_factory):
    """Prepared datasets are cached in a directory of this test session, never in the user's."""
    os.environ["TFDS_DATA_DIR"] = str(tmp_path_factory.mktemp("tfds"))


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1000"
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Chromium without a window, driven by its own driver, with the messages of its console."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driver
    driver.quit()
