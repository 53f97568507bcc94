//! Image references: what is taken has one normal form, in which it means the same, and no grant covers more than it says.

use sandbar_core::image::{Image, ImagePattern};

use crate::one_line;

/// The bytes are a reference, and after a line end a pattern.
///
/// # Panics
/// Where a promise is broken.
pub fn image(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (reference, pattern) = text.split_once('\n').unwrap_or((&text, &text));
    match Image::parse(reference) {
        Err(e) => one_line(&e),
        Ok(image) => {
            let full = image.to_string();
            assert_eq!(Image::parse(&full).as_ref(), Ok(&image), "{reference:?}");
            // Nothing of it means anything to a shell, or to Docker's command line.
            assert!(full.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c)), "{full:?}");
            assert!(!reference.starts_with('-') && !repository(&full).contains(".."), "{reference:?}");
            // An image covers itself and nothing else of another registry or repository.
            assert!(ImagePattern::parse(&full).unwrap().covers(&image), "{full:?}");
            if let Ok(pattern) = ImagePattern::parse(pattern)
                && pattern.covers(&image)
                && !pattern.to_string().contains('*')
            {
                let granted = Image::parse(&pattern.to_string()).unwrap().to_string();
                assert_eq!(repository(&granted), repository(&full), "{granted} covers {full}");
            }
        }
    }
    if let Err(e) = ImagePattern::parse(pattern) {
        one_line(&e);
    }
}

/// A reference without tag and digest.
fn repository(reference: &str) -> &str {
    let name = reference.split('@').next().unwrap_or_default();
    match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => name,
    }
}
