//! A few seconds of what `make fuzz` does for as long as it is let: the same promises, with changes by chance to real engines
//! and hostile ones. A run that fails says with which seed; `SANDBAR_SEED` plays that one alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use sandbar_fuzz::{component, engines, image, recipe};

/// Plays some seeds.
fn play(what: &str, seeds: Range<u64>, turn: impl Fn(&mut Rng)) {
    let only = std::env::var("SANDBAR_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        let played = catch_unwind(AssertUnwindSafe(|| turn(&mut Rng::with_seed(seed))));
        assert!(played.is_ok(), "{what}: SANDBAR_SEED={seed} fails");
    }
}

/// Bytes that mean something in a component or in a text.
const PIECES: [&[u8]; 16] = [
    b"\0",
    b"\n",
    b"\x1b[31m",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f",
    b"\x80",
    b"1.0.0",
    b"2.0.0",
    b"@",
    b"wasi:io/poll@0.2.0",
    b"sandbar:engine/engine@1.0.0",
    b"\0asm",
    b"{password}",
    b"\xe2\x80\xae",
    b":latest",
    b"*",
];

fn change(rng: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..=data.len());
        let to = (at + rng.usize(..64)).min(data.len());
        match rng.u8(..7) {
            0 if at < data.len() => data[at] ^= 1 << rng.u8(..8),
            1 if at < data.len() => data[at] = rng.u8(..),
            2 => drop(data.drain(at..to)),
            3 => {
                let copied = data[at..to].to_vec();
                let from = rng.usize(..=data.len());
                data.splice(from..from, copied);
            }
            4 if rng.u8(..8) == 0 => data.truncate(at),
            5 => {
                let piece = PIECES[rng.usize(..PIECES.len())];
                let end = (at + piece.len()).min(data.len());
                data.splice(at..end, piece.iter().copied());
            }
            _ => data.splice(at..at, std::iter::repeat_n(rng.u8(..), rng.usize(..8))).for_each(drop),
        }
    }
}

#[test]
fn components() {
    let corpus: Vec<_> = sandbar_hostile::all().into_iter().map(|(_, source)| source.build()).collect();
    play("component", 0..600, |rng| {
        let mut data = corpus[rng.usize(..corpus.len())].clone();
        change(rng, &mut data);
        component(&data);
    });
}

#[test]
fn real_components() {
    let corpus = engines();
    for (_, data) in &corpus {
        component(data);
    }
    play("real component", 0..150, |rng| {
        let mut data = corpus[rng.usize(..corpus.len())].1.clone();
        change(rng, &mut data);
        component(&data);
    });
}

#[test]
fn recipes() {
    // Unchanged, they all pass.
    (0..=u8::MAX).for_each(|base| recipe(&[base]));
    play("recipe", 0..20_000, |rng| {
        let mut data = vec![0; rng.usize(..60)];
        rng.fill(&mut data);
        recipe(&data);
    });
}

#[test]
fn images() {
    let corpus = ["redis:8-alpine", "localhost:5000/a/b:1", "index.docker.io/library/x", "x@sha256:", "a.b/c\na.b/*:*"];
    play("image", 0..50_000, |rng| {
        let mut data = corpus[rng.usize(..corpus.len())].as_bytes().to_vec();
        if rng.u8(..4) == 0 {
            data.extend("aB0".repeat(22).as_bytes());
        }
        change(rng, &mut data);
        image(&data);
    });
}
