#!/bin/sh
# The compiler for `make fuzz`: what it is told to compile, and how libFuzzer learns which parts of it were run. Only crates of
# this workspace are compiled so, since a mistake to be found is in them.
exec "$@" -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
