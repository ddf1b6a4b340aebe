# tenure. `make demo` shows what it does, `make test` says whether all of it works; both first say what they found here.
#
#   VENV=dir       the virtual environment to use (default: .venv, made if absent)
#   PYTHON=python  the Python to make it with, and the first to test with
#   ONLY="a b"     make test: these checks of ci/ alone
#   BENCH=options of `tenure bench`, such as "--json"
#   V=1            make test: the output of each check as it comes

export VENV PYTHON ONLY V
.DEFAULT_GOAL := help
.PHONY: help doctor lib demo test docs bridge-rmm wheel gpu-bundle bench soak mutants format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

doctor: ## what is found on this machine, what is missing and what that costs
	@tools/doctor

lib: ## the shared library, the Python module and the command, in python/tenure
	@tools/lib

demo: ## one buffer through four languages, and replayed logs with a picture (demo/report.html)
	@tools/demo

test: ## every check; ends with what was skipped and why
	@tools/doctor && ci/all $(ONLY)

bridge-rmm: lib ## python/tenure/bridges: the bridge to RMM, one file for each minor version (MINORS="26.10")
	@tools/bridge-rmm $(MINORS)

wheel: ## one wheel in dist/, installed and tried in a fresh environment of each Python found
	@tools/doctor --quiet && tools/wheel

gpu-bundle: ## target/gpu-bundle: everything to test and measure on a machine with an NVIDIA GPU and no Rust
	@tools/doctor --quiet && tools/gpu-bundle

docs: ## target/site: the documentation site, with warnings as errors
	@tools/site

bench: lib ## what operations cost, each beside a reference measured in the same run
	@$$(tools/venv) -m tenure bench $(BENCH)

soak: lib ## random programs and scenarios with a failing driver, for as long as SOAK_SECONDS says (default 600)
	@ci/soak

mutants: ## each rule of the pool taken out in turn: a test must notice
	@ci/mutants

format: ## rewrites Rust and Python sources in the project's format
	@tools/format

clean: ## removes what was built; .venv stays
	@rm -rf target dist demo build python/tenure/lib python/tenure/bin python/tenure/include python/tenure/cmake python/tenure/_tenure*.so python/tenure/bridges/*.so
