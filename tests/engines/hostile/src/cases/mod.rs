//! The kinds of harm, one file each.

mod account;
mod chance;
mod data;
mod descriptor;
mod doors;
mod files;
mod image;
mod imports;
mod large;
mod looping;
mod malformed;
mod memory;
mod nul;
mod placeholders;
mod recursion;
mod slug;
mod steps;
mod table;
mod times;
mod trap;
mod variables;
mod waiting;

use crate::Engines;

/// What each file makes.
pub(crate) const ALL: [fn() -> Engines; 22] = [
    account::engines,
    chance::engines,
    data::engines,
    descriptor::engines,
    doors::engines,
    files::engines,
    image::engines,
    imports::engines,
    large::engines,
    looping::engines,
    malformed::engines,
    memory::engines,
    nul::engines,
    placeholders::engines,
    recursion::engines,
    slug::engines,
    steps::engines,
    table::engines,
    times::engines,
    trap::engines,
    variables::engines,
    waiting::engines,
];
