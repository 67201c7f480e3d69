# The verbs of the house. Each installs what it needs first (see scripts/deps).
CARGO ?= cargo
# The target folder may live elsewhere (CARGO_TARGET_DIR); target/release/kuroshio is then a link.
TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
DEMO_ARGS ?=

.PHONY: help build demo test bench soak vm-check vm-bench vm-test kernel-check lint deps clean

help:
	@echo "make demo   the main job: paced copy over an emulated Pacific, with a report"
	@echo "make test   all tests"
	@echo "make build  leaves target/release/kuroshio"
	@echo "make bench  comparisons with other movers; one JSON file each in bench/results/"
	@echo "make soak   long fault-injection runs"
	@echo "make vm-check, vm-bench   in QEMU, virtual time: the machine itself; against netem, tbf and the kernel's modules"
	@echo "make vm-test   the kernel module on a stock kernel in QEMU (VM_TEST=smoke, commands, figures, edges, fuzz, range, tcp, churn, cost or all)"
	@echo "make kernel-check   the kernel's own checks of the module: sparse, checkpatch; its man page; DKMS (KERNELS=\"6.12.117+deb12 6.1.0-56\")"
	@echo "make lint   rustfmt, clippy and rustdoc with warnings as errors"

deps:
	@scripts/deps build

build: deps
	$(CARGO) build --release --locked -p kuroshio
	@if [ "$(TARGET_DIR)" != target ]; then \
	  mkdir -p target/release && ln -sfn "$(abspath $(TARGET_DIR))/release/kuroshio" target/release/kuroshio; fi

demo: build
	@scripts/deps demo
	target/release/kuroshio demo $(DEMO_ARGS)

test: deps
	@scripts/deps test
	$(CARGO) test --workspace --locked
	bench/test_bench.py
	python/test

bench: build
	bench/run
	bench/table.py

soak: build
	@scripts/deps test
	$(CARGO) test --release --locked --workspace -- --ignored --nocapture soak

vm-check:
	@scripts/deps vm
	tests/vm/check.sh

vm-bench: build
	@scripts/deps vm
	$(CARGO) build --locked -p kuroshio-bpf --example hold
	$(CARGO) build --locked -p kuroshio-lab --example window
	tests/vm/goodput.py
	tests/vm/congestion.py --hold "$(TARGET_DIR)/debug/examples/hold" --window "$(TARGET_DIR)/debug/examples/window"

VM_TEST ?= smoke
vm-test:
	@scripts/deps vm
	kernel/test/run $(VM_TEST)

KERNELS ?=
kernel-check:
	@scripts/deps kernel-check
	kernel/check $(KERNELS)
	kernel/test/dkms $(or $(KERNELS),$(shell tests/vm/vm version))

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

clean:
	$(CARGO) clean
	rm -rf bench/results
