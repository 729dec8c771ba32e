# Short names for the commands of CONTRIBUTING.md. PYTHON=... chooses another interpreter, WORKERS=... other than two test processes.
# A file of tests is run by one process, so that what its tests share is made once.
PYTHON ?= python
WORKERS ?= 2

.PHONY: help setup fast test lint format results figures docs site notebooks mutants ci

help:     ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 10

setup:    ## install everything the default experiment and the tests need
	$(PYTHON) -m pip install -r requirements.txt

fast:     ## the default tests: one member of every family of checks, of every package
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

test:     ## all tests
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile

lint:     ## the linters of .ci/run
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) .ci/docs.py
	$(PYTHON) .ci/names.py

format:   ## fix what can be fixed automatically
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

results:  ## write docs/results.md, docs/results/ and README's numbers from experiments/results/*.json
	@$(PYTHON) -m attention_jax.claims.pages

figures:  ## draw the figures of experiments/results that stored data suffice for: learning curves, comparisons, sweeps
	@$(PYTHON) -m attention_jax.claims.record
	@$(PYTHON) -m attention_jax.sweep.summary

docs:     ## the tests of README and docs/
	$(PYTHON) -m pytest -n 0 tests/test_readme.py tests/test_docs.py tests/test_guides.py tests/test_site.py

site:     ## build the documentation site, build/site/index.html; needs the extra `docs`
	$(PYTHON) -m sphinx -W --keep-going -q -b html docs build/site

notebooks: ## run the scripts of docs/notebooks/ and write what they show into notebooks; needs the extra `notebooks`
	$(PYTHON) -m jupytext --to notebook --set-kernel python3 --execute --run-path . docs/notebooks/*.py

mutants:  ## do the default tests see 60 small wrong edits of the library? .ci/mutants.py --help
	$(PYTHON) .ci/mutants.py

ci:       ## all that .ci/run checks, in fresh environments
	.ci/run
