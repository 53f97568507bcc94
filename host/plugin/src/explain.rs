//! One line for a person out of what went wrong in a guest. Texts that a guest may have chosen are cut and cleaned here,
//! since they go to logs, terminals and agents.

use std::time::Duration;

use wasmtime::{Error, Trap};
use wasmtime_wasi::I32Exit;

use crate::limits::{GUEST_STACK_BYTES, Limits, MAX_ERROR_CHARS};
use crate::store::{Refused, State};

/// How wasmtime's error for an answer that is too large begins. Its type is private; a test notices when the text
/// changes, and until then the error is only less clear.
const TOO_MUCH_DATA: &str = "too much data is being copied";

/// The beginning of `text` as one line: control and invisible characters become spaces, runs of spaces one, and what is
/// longer than [`MAX_ERROR_CHARS`] is cut.
pub(crate) fn one_line(text: &str) -> String {
    let mut line: String = visible(text).take(MAX_ERROR_CHARS + 1).collect();
    if let Some((cut, _)) = line.char_indices().nth(MAX_ERROR_CHARS) {
        line.replace_range(cut.., "…");
    }
    line
}

/// The end of `text` as one line; otherwise like [`one_line`].
pub(crate) fn line_end(text: &str) -> String {
    let line: Vec<char> = visible(text).collect();
    match line.len().checked_sub(MAX_ERROR_CHARS) {
        None | Some(0) => line.into_iter().collect(),
        Some(surplus) => std::iter::once('…').chain(line.into_iter().skip(surplus)).collect(),
    }
}

/// The characters of a text that can be seen, and one space wherever there were others.
fn visible(text: &str) -> impl Iterator<Item = char> {
    text.split(|c: char| c.is_whitespace() || is_hidden(c))
        .filter(|word| !word.is_empty())
        .enumerate()
        .flat_map(|(index, word)| (index > 0).then_some(' ').into_iter().chain(word.chars()))
}

/// Whether a character does something other than be seen: control characters, and those of Unicode that are invisible
/// or turn the direction of the text around them.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// What a call says that ran into its deadline.
pub(crate) fn too_slow(limit: Duration) -> String {
    format!("it took longer than {limit:?}")
}

/// What a failed call says: why it failed, and the last words of the guest if there are any.
pub(crate) fn failure(error: &Error, state: &State, limit: Duration, limits: &Limits) -> String {
    let why = reason(error, state.meter.refused, limit, limits);
    match state.last_words() {
        Some(words) => format!("{why}; it said: {words}"),
        None => why,
    }
}

/// `refused` is what the call was denied before, which mostly is why it failed.
fn reason(error: &Error, refused: Option<Refused>, limit: Duration, limits: &Limits) -> String {
    if let Some(trap) = error.downcast_ref::<Trap>() {
        match trap {
            Trap::Interrupt => return too_slow(limit),
            Trap::StackOverflow => {
                return format!("it recursed too deeply: its stack is {} KiB", GUEST_STACK_BYTES / 1024);
            }
            _ => {}
        }
    }
    if let Some(refused) = refused {
        return refused.to_string();
    }
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return format!("it ended itself with exit code {code}");
    }
    // The root, not the whole chain: the rest is a backtrace with names that the guest chose.
    let root = error.root_cause().to_string();
    if root.starts_with(TOO_MUCH_DATA) {
        return format!("its answer is larger than {} KiB", limits.answer_bytes / 1024);
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::UnreachableCodeReached) => "it crashed, as a panic does".to_owned(),
        Some(_) => format!("it crashed: {}", one_line(root.trim_start_matches("wasm trap: "))),
        None => format!("it broke the rules of a call: {}", one_line(&root)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_one_bounded_line() {
        assert_eq!(one_line("  a\r\n\tb\u{1b}[31mc\u{202e}d  "), "a b [31mc d");
        let cut = one_line(&"ä".repeat(MAX_ERROR_CHARS * 2));
        assert_eq!(cut.chars().count(), MAX_ERROR_CHARS + 1);
        assert!(cut.ends_with('…'));
        assert_eq!(one_line("\n\u{200b}\n"), "");
        assert_eq!(one_line(&"x".repeat(MAX_ERROR_CHARS)).len(), MAX_ERROR_CHARS, "what fits is not cut");
    }

    #[test]
    fn the_end_of_a_text_is_what_line_end_keeps() {
        assert_eq!(line_end("  a\n\nb "), "a b");
        let cut = line_end(&format!("{}end", "ä".repeat(MAX_ERROR_CHARS)));
        assert_eq!(cut.chars().count(), MAX_ERROR_CHARS + 1);
        assert!(cut.starts_with('…') && cut.ends_with("äend"));
    }
}
