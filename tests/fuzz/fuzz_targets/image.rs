//! libFuzzer's program for `sandbar_fuzz::image`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbar_fuzz::image(data));
