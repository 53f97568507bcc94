//! libFuzzer's program for `sandbar_fuzz::recipe`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbar_fuzz::recipe(data));
