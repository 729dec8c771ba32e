"""The packages of the wheel: the library, and the experiments of the checkout as `attention_jax.experiments`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["attention_jax*"]),
        "attention_jax.experiments",
        "attention_jax.experiments.papers",
    ],
    package_dir={"attention_jax.experiments": "experiments"},
)
