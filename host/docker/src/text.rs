//! Bounded text out of bytes that somebody else's program printed: cut where a character ends, and readable whatever the
//! bytes are.

/// The beginning of `bytes`, at most `limit` of them.
pub(crate) fn start(bytes: &[u8], limit: usize) -> String {
    if bytes.len() <= limit {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut end = limit;
    // A character has at most three bytes that continue it.
    while end > limit.saturating_sub(3) && end > 0 && continues(bytes[end]) {
        end -= 1;
    }
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The end of `bytes`, at most `limit` of them; where they are exactly `limit`, they count as cut.
pub(crate) fn end(bytes: &[u8], limit: usize) -> String {
    let mut start = bytes.len().saturating_sub(limit);
    let cut = bytes.len() >= limit;
    for _ in 0..3 {
        if cut && bytes.get(start).is_some_and(|byte| continues(*byte)) {
            start += 1;
        }
    }
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

/// Whether a byte continues a character of UTF-8.
fn continues(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_stays_whole_whatever_it_is() {
        assert_eq!(start(b"abc", 3), "abc");
        assert_eq!(start(b"a\xffc", 3), "a\u{fffd}c");
        assert_eq!(end(b"abc", 4), "abc");
    }

    #[test]
    fn text_is_cut_between_characters() {
        let text = "aé€🦀z";
        for limit in 0..text.len() {
            let (head, tail) = (start(text.as_bytes(), limit), end(text.as_bytes(), limit));
            assert!(text.starts_with(&head) && head.len() <= limit, "{limit}: {head}");
            assert!(text.ends_with(&tail) && tail.len() <= limit, "{limit}: {tail}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_cut_all_the_same() {
        let noise = [0x80_u8; 64];
        assert!(start(&noise, 10).chars().count() <= 10);
        assert!(end(&noise, 10).chars().count() <= 10);
    }
}
