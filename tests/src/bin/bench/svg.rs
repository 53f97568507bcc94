//! Pictures for the README: text and lines in greys that show on light and on dark.

use std::fmt::Write as _;

const OURS: &str = "#2f81f7";
const OTHERS: &str = "#8b949e";
const TEXT: &str = "#818b98";

/// One bar: what, its length, a mark further out, and whether it is Sandbar's.
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) mark: f64,
    pub(crate) ours: bool,
}

fn open(width: u32, height: usize, title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"{TEXT}\">\n<title>{title}</title>\n<text x=\"8\" y=\"20\" font-weight=\"bold\">{title}</text>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, content: &str) {
    let _ =
        writeln!(svg, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>", at.0, at.1, escape(content));
}

/// Bars below each other, each with its value in milliseconds.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.mark.max(bar.value)).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = open(820, 44 + bars.len() * 28, title);
    let mut y = 36.0;
    for bar in bars {
        let length = |value: f64| (value / longest * 360.0).max(1.0);
        let colour = if bar.ours { OURS } else { OTHERS };
        text(&mut svg, (350.0, y + 15.0), "end", &bar.what);
        let (long, mark) = (length(bar.value), 360.0 + length(bar.mark));
        let _ = writeln!(svg, "<rect x=\"360\" y=\"{y}\" width=\"{long:.1}\" height=\"20\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<path d=\"M{mark:.1} {} v12\" stroke=\"{TEXT}\" stroke-width=\"2\"/>", y + 4.0);
        let value = if bar.value < 100.0 { format!("{:.1} ms", bar.value) } else { format!("{:.0} ms", bar.value) };
        text(&mut svg, (mark.max(360.0 + long) + 8.0, y + 15.0), "start", &value);
        y += 28.0;
    }
    svg + "</svg>\n"
}

/// One line: what, its values, and whether it is Sandbar's.
pub(crate) type Line<'a> = (&'a str, Vec<f64>, bool);

/// Lines over what stands below, in milliseconds on a logarithmic scale.
pub(crate) fn lines(title: &str, below: &[[String; 2]], lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|(_, values, _)| values.iter().copied());
    let low = all().fold(f64::MAX, f64::min).log10().floor();
    let high = all().fold(f64::MIN, f64::max).log10().ceil().max(low + 1.0);
    let y = |value: f64| 300.0 - (value.log10() - low) / (high - low) * 250.0;
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let x = |n: usize| 90.0 + n as f64 * 420.0 / (below.len().max(2) - 1) as f64;
    let mut svg = open(820, 360, title);
    let mut power = low;
    while power <= high {
        let value = 10f64.powf(power);
        text(&mut svg, (60.0, y(value) + 4.0), "end", &format!("{value} ms"));
        let _ = writeln!(svg, "<path d=\"M70 {:.1} h460\" stroke=\"{OTHERS}\" stroke-opacity=\"0.3\"/>", y(value));
        power += 1.0;
    }
    for (n, words) in below.iter().enumerate() {
        for (line, words) in words.iter().enumerate() {
            text(&mut svg, (x(n), if line == 0 { 322.0 } else { 340.0 }), "middle", words);
        }
    }
    // Names stand beside the last points, and never on each other.
    let mut named = lines.iter().map(|line| (line.1.last().copied().map_or(0.0, y), line)).collect::<Vec<_>>();
    named.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = 0.0;
    for (at, (what, values, ours)) in named {
        let (colour, dashes) = if *ours { (OURS, "none") } else { (OTHERS, "5 4") };
        let points: String = values.iter().enumerate().fold(String::new(), |mut points, (n, value)| {
            let _ = write!(points, "{:.1},{:.1} ", x(n), y(*value));
            points
        });
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>"
        );
        free = at.max(free) + 16.0;
        text(&mut svg, (530.0, free - 12.0), "start", what);
    }
    svg + "</svg>\n"
}
