//! libFuzzer's program for `sandbar_fuzz::component`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbar_fuzz::component(data));
