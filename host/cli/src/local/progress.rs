//! How a start goes, on standard error: a bar for each service on a terminal, a line for each step elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// How often something moves on a terminal, so that it is seen that it goes on.
const TICK: Duration = Duration::from_millis(120);
/// Of a step that tells how much of it is done.
const SHARE: &str = "{prefix:12} [{bar:24}] {bytes}/{total_bytes} {wide_msg}";
/// Of any other.
const STEP: &str = "{prefix:12} {spinner} {elapsed} {wide_msg}";

/// What is shown. Dropping it takes the bars away.
pub(super) struct Shown {
    all: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
    said: BTreeMap<String, String>,
}

impl Shown {
    pub(super) fn new() -> Self {
        Self { all: MultiProgress::new(), bars: BTreeMap::new(), said: BTreeMap::new() }
    }

    /// Takes a report in, in the words of the host.
    pub(super) fn tell(&mut self, report: &str) {
        let Some((service, doing)) = report.split_once(": ") else { return };
        let (doing, bytes) = share(doing);
        if self.all.is_hidden() {
            // More about a step is nothing that a log needs.
            let step = doing.split(": ").next().unwrap_or_default();
            if self.said.insert(service.to_owned(), step.to_owned()).as_deref() != Some(step) {
                eprintln!("{service}: {step}");
            }
            return;
        }
        let bar = self.bars.entry(service.to_owned()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new(0).with_prefix(service.to_owned()));
            bar.enable_steady_tick(TICK);
            bar
        });
        let style = ProgressStyle::with_template(if bytes.is_some() { SHARE } else { STEP });
        bar.set_style(style.expect("the templates are right").progress_chars("#. ").tick_chars("|/-\\ "));
        if let Some((done, all)) = bytes {
            bar.set_length(all);
            bar.set_position(done);
        }
        bar.set_message(doing.to_owned());
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        for bar in self.bars.values() {
            bar.finish_and_clear();
        }
    }
}

/// What is being done, and how many bytes of how many are, where that is told.
fn share(doing: &str) -> (&str, Option<(u64, u64)>) {
    let bytes = || {
        let (what, numbers) = doing.strip_suffix(" bytes")?.rsplit_once(", ")?;
        let (done, all) = numbers.split_once(" of ")?;
        Some((what, (done.parse().ok()?, all.parse().ok()?)))
    };
    bytes().map_or((doing, None), |(what, bytes)| (what, Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_the_words_of_the_host() {
        let image = "pull registry:5000/a: Downloading";
        assert_eq!(share(&format!("{image}, 5 of 10 bytes")), (image, Some((5, 10))));
        assert_eq!(share("setup a, b of c bytes"), ("setup a, b of c bytes", None));
        assert_eq!(share("ready"), ("ready", None));
    }
}
