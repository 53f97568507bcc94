//! The runtime against a real Docker. These tests need a daemon (found as the product finds it: `DOCKER_HOST`, else the
//! usual sockets) and a static busybox on this machine (Debian's `busybox-static`), of which they make the one image they
//! use. They fail where either is missing, and never skip.
//!
//! Each test has an installation and a network of its own, and takes away what it made, also when it fails.

mod away;
mod bench;
mod end;
mod exec;
mod make;
mod manage;
