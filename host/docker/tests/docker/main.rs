//! The runtime against a real Docker. These tests need a daemon (found as the product finds it: `DOCKER_HOST`, else the
//! usual sockets) and a static busybox on this machine (Debian's `busybox-static`), of which they make the image
//! that most of them use; a few need the stand-in for Redis as well, which is Debian and which `make setup` builds. They fail
//! where something is missing, and never skip.
//!
//! Each test has an installation and a network of its own, and takes away what it made, also when it fails.

mod away;
mod bench;
mod commands;
mod end;
mod exec;
mod kept;
mod make;
mod manage;
mod nowhere;
