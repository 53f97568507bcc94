# make demo   watch an agent get its databases, use them and give them back
# make test   everything that is tested
# Both set up what they need: on a fresh Debian machine as root, Docker and the images too.

CARGO_TARGET_DIR ?= $(CURDIR)/target
SANDBAR_IMAGES_TOML ?= $(CARGO_TARGET_DIR)/images.toml
SANDBAR_ENGINES := $(CARGO_TARGET_DIR)/engines
SANDBAR_TEST_ENGINES := $(CARGO_TARGET_DIR)/test-engines
export CARGO_TARGET_DIR SANDBAR_IMAGES_TOML SANDBAR_ENGINES SANDBAR_TEST_ENGINES

ENGINES := engines/postgres engines/redis engines/mongo engines/box
TEST_ENGINES := tests/engines/fixture
# As if they were somebody else's: no host knows them before a test adds them.
THIRD_PARTY := tests/engines/mariadb tests/engines/nats
ENGINE_BUILD = cargo run --quiet --locked --package sandbar-sdk-build --

.PHONY: demo test bench soak mutants fuzz suites image setup engines python build lint check e2e-newer

# One selection of packages everywhere: another one has other features, and Cargo would compile wasmtime anew for it.
demo: setup build
	@$(CARGO_TARGET_DIR)/debug/demo

test: setup build lint check

# `make bench PARTS="--draw docs compare growth"` runs some parts alone and draws what has a picture.
bench: setup engines
	@tests/compare/ensure.sh $(CARGO_TARGET_DIR)/compare
	cargo build --locked --release --workspace
	@$(CARGO_TARGET_DIR)/release/bench $(PARTS)
	cargo bench --locked --workspace --bench control-plane

# The core on a simulated runtime: SANDBAR_SCHEDULES says how many schedules, SANDBAR_SEED plays one alone.
soak: export SANDBAR_SCHEDULES ?= 100000
soak: engines
	cargo test --locked --workspace --test simulation schedules -- --nocapture

# Takes one guard of the core after another out and shows which seed or scene of the simulation notices; some minutes.
mutants:
	@host/core/tests/simulation/mutants.sh

# libFuzzer on the loader of components, the check of recipes and image references; a few seconds of the same are in the tests.
# SANDBAR_FUZZ_SECONDS says how long each.
fuzz: engines
	@tests/fuzz/run.sh $(CARGO_TARGET_DIR) $${SANDBAR_FUZZ_SECONDS:-300}

# The test suites of SQLAlchemy and Alembic, each against a sandbox.
suites: setup engines
	cargo build --locked --workspace
	@tests/suites/run.sh $(CARGO_TARGET_DIR)/suites $(CARGO_TARGET_DIR)/debug/with-sandbox

# The host as a container image, sandbar:latest; BASE says what it starts from.
image:
	@host/image/build.sh

setup:
	@tests/setup.sh

engines:
	@$(ENGINE_BUILD) $(ENGINES) --out $(SANDBAR_ENGINES) --locked
	@$(ENGINE_BUILD) $(TEST_ENGINES) --out $(SANDBAR_TEST_ENGINES) --locked
	@$(ENGINE_BUILD) $(THIRD_PARTY) --out $(SANDBAR_TEST_ENGINES)/third-party --locked

# An engine in another language, for the tests.
python:
	@tests/engines/python/build.sh $(CARGO_TARGET_DIR)/python/pycache.wasm

build: engines
	cargo build --locked --workspace --all-targets

lint:
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path engines/Cargo.toml
	cargo fmt --all --check --manifest-path tests/compare/rust/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets --manifest-path engines/Cargo.toml -- -D warnings

check: python
	cargo test --locked --workspace
	cargo test --locked --workspace --manifest-path engines/Cargo.toml

# The tests that need Docker again on a newer one, beside the one that everything else runs on, and those that restart Docker.
e2e-newer: setup build python
	tests/docker/newer.sh run cargo test --locked --workspace --test docker --test e2e --test docker-trouble -- --include-ignored
