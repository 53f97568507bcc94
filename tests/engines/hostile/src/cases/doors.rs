//! Engines that do nothing without a file, a connection or a variable of the host: they crash where the door is closed.

use crate::text::{SCRATCH, Text};
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    // Each pushes a list into scratch memory, and its length is at 4.
    let list = |interface: &str, function: &str| -> Source {
        let plan = format!(
            "(call ${function} (i32.const {SCRATCH}))
             (if (i32.eqz (i32.load offset=4 (i32.const {SCRATCH}))) (then unreachable))
             (i32.const {{answer}})"
        );
        Text::importing(&[(interface, function, "(param i32)")], &plan).into()
    };
    // Each pushes a result, and an error is 1.
    let socket = |interface: &str, function: &str| -> Source {
        let plan = format!(
            "(call ${function} (i32.const 0) (i32.const {SCRATCH}))
             (if (i32.load8_u (i32.const {SCRATCH})) (then unreachable))
             (i32.const {{answer}})"
        );
        Text::importing(&[(interface, function, "(param i32 i32)")], &plan).into()
    };
    named([
        ("door-files", list("filesystem/preopens", "get-directories")),
        ("door-environment", list("cli/environment", "get-environment")),
        ("door-arguments", list("cli/environment", "get-arguments")),
        ("door-tcp", socket("sockets/tcp-create-socket", "create-tcp-socket")),
        ("door-udp", socket("sockets/udp-create-socket", "create-udp-socket")),
    ])
}
