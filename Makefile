# SPDX-License-Identifier: MIT
# A thin front of CMake. Flags live in CMakePresets.json, packages in scripts/deps.sh.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# For CI: -DSHOAL_WERROR=ON. The test presets have it anyway.
RELEASE_OPTIONS ?=
# For ctest: make test TEST_OPTIONS='-R unit/base -j 8'
TEST_OPTIONS ?=

.PHONY: all run test test-asan test-tsan test-browser test-python wheel test-hosts test-slurm bench sweep drill deviate settings soak soak-device soak-python soak-torch fuzz fuzz-passes install uninstall lint tidy clean
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

all:
	@cmake --preset release $(RELEASE_OPTIONS)
	@cmake --build --preset release -j $(JOBS)

run:
	@scripts/stage.sh "looking for packages" scripts/deps.sh build
	@scripts/stage.sh "looking for OpenBLAS" scripts/deps.sh run || echo "run: goes on without OpenBLAS, with plain loops"
	@scripts/stage.sh "building the library and the tool" $(MAKE) all
	build/bin/shoal train --ranks 2 --lr 0.002 --prompt 'static ' --verify --verify-steps 20
	@echo
	@echo "your own text:   build/bin/shoal train --ranks 2 --data FILE --prompt 'Once'"
	@echo "more ranks:      build/bin/shoal train --ranks 4 --steps 20; --mode single --accumulate 4 has the same digest"
	@echo "a checkpoint:    build/bin/shoal train --ranks 2 --checkpoint DIR --every 50, and again with --resume"

test:
	@scripts/deps.sh build test
	@$(MAKE) all
	@cmake --preset dev
	@cmake --build --preset dev -j $(JOBS)
	@ctest --preset dev $(TEST_OPTIONS)

test-asan test-tsan: test-%:
	@scripts/deps.sh build test
	@cmake --preset $*
	@cmake --build --preset $* -j $(JOBS)
	@ctest --preset $* $(TEST_OPTIONS)

# The page of `shoal report` in Debian's Chromium, which this installs, and without which it fails.
test-browser:
	@scripts/deps.sh build browser
	@$(MAKE) all
	@tests/browser/page.pl build/bin/shoal

# The Python package on the libraries of `make all`.
test-python:
	@scripts/deps.sh build python
	@$(MAKE) all
	@scripts/test_python.sh

# A wheel for pip, with the libraries inside: build/dist/shoal-VERSION-py3-none-linux_MACHINE.whl
wheel:
	@scripts/deps.sh build wheel
	@scripts/wheel.sh

# Several hosts, made of namespaces: needs root. `scripts/test_hosts.sh fixture` runs one test of it.
test-hosts:
	@scripts/deps.sh build test
	@scripts/test_hosts.sh

test-slurm:
	@scripts/deps.sh build test slurm
	@scripts/test_slurm.sh

# RANKS, SIZES, ROTATE, ROUNDS and REPORT (a file for what is printed) go to bench/run.sh.
bench: all
	@scripts/deps.sh bench || echo "bench: goes on without the peers that are missing"
	build/bin/shoal bench kernels
	bench/run.sh

# Hours. `scripts/sweep.sh -r 3 -o all_reduce` runs a part.
sweep:
	@scripts/deps.sh build test
	@scripts/sweep.sh

# Programs in which one rank deviates: 20 for each argument that ranks compare.
deviate:
	@scripts/deps.sh build test
	@scripts/deviate.sh

# Random settings of sharded units, compiled beside eager: 200 networks for each number of ranks.
settings:
	@scripts/deps.sh build test
	@scripts/settings.sh

drill:
	@scripts/deps.sh build test
	@scripts/drill.sh

soak:
	@scripts/deps.sh build test
	@scripts/soak.sh

# Hours. `scripts/soak_device.sh 20 5 ops` runs seeds 5 to 24 of the tests whose names have "ops".
soak-device:
	@scripts/deps.sh build test
	@scripts/soak_device.sh

# Half an hour. `python/tests/random_programs.py --seed NUMBER` repeats one program.
soak-python: all
	@scripts/soak_python.sh

# Half an hour. `python/tests/torch_programs.py --count 1 --first NUMBER` repeats one program.
soak-torch: all
	@scripts/deps.sh build python
	@scripts/soak_torch.sh

# `JOBS=16 scripts/fuzz.sh 3600` runs each for an hour, `scripts/fuzz.sh 600 safetensors` one for longer.
fuzz:
	@scripts/deps.sh build test
	@scripts/deps.sh fuzz || echo "fuzz: goes on without libFuzzer"
	@JOBS=$(JOBS) scripts/fuzz.sh

# `scripts/fuzz_passes.sh 1 NUMBER` repeats one graph.
fuzz-passes:
	@scripts/deps.sh build test
	@scripts/fuzz_passes.sh

# As absolute paths, in which there may be blanks. An empty DESTDIR is none.
absolute = $$(realpath -ms -- "$$$(1)")
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)

install: all
	@DESTDIR="$${DESTDIR:+$(call absolute,DESTDIR)}" cmake --install build --prefix "$(call absolute,PREFIX)"

# The files that `make install` has put below PREFIX (and DESTDIR), and folders that it made, if they are empty.
uninstall:
	@scripts/uninstall.sh build "$${DESTDIR:+$(call absolute,DESTDIR)}$(call absolute,PREFIX)"

# The sources of the MPI modules are checked too, which takes the packages of the tests.
lint:
	@scripts/deps.sh build test lint
	@scripts/lint.sh

tidy:
	@scripts/deps.sh build test lint
	@scripts/tidy.sh

clean:
	@cmake -E rm -rf build
