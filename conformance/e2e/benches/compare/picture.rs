//! The figures as an SVG picture: for each row a bar of ours and one of the reference.

use std::fmt::Write as _;

/// A pair of figures.
pub(crate) struct Bars {
    /// The row's label.
    pub(crate) name: String,
    /// Medians in milliseconds.
    pub(crate) ours: f64,
    pub(crate) reference: f64,
}

const WIDTH: f64 = 880.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 130.0;
const ROW: f64 = 46.0;
const TOP: f64 = 70.0;
/// Colours that differ in brightness too.
const OURS: &str = "#c2410c";
const REFERENCE: &str = "#94a3b8";

/// The picture. Every row has a scale of its own, since milliseconds and seconds would not fit one: the longer bar has the full width.
pub(crate) fn draw(title: &str, note: &str, rows: &[Bars]) -> String {
    let height = TOP + ROW * rows.len() as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
        <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
        <text x=\"20\" y=\"30\" font-size=\"18\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    for (x, colour, name) in [(20.0, OURS, "Ferrule"), (120.0, REFERENCE, "the Go plugins")] {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"43\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"54\">{name}</text>",
            x + 18.0
        );
    }
    for (index, Bars { name, ours, reference }) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let scale = (WIDTH - LEFT - RIGHT) / ours.max(*reference);
        let _ = writeln!(svg, "<text x=\"20\" y=\"{}\">{}</text>", y + 22.0, escape(name));
        let times = reference / ours;
        for (offset, value, colour, more) in [
            (4.0, *ours, OURS, format!(", {times:.1} times faster")),
            (21.0, *reference, REFERENCE, String::new()),
        ] {
            let width = (value * scale).max(1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\"/>\
                <text x=\"{:.1}\" y=\"{}\" font-size=\"12\">{}{more}</text>",
                y + offset,
                LEFT + width + 6.0,
                y + offset + 11.0,
                shown(value),
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{}\" font-size=\"12\" fill=\"#475569\">{}</text>\n</svg>",
        height - 12.0,
        escape(note)
    );
    svg
}

fn shown(milliseconds: f64) -> String {
    match milliseconds {
        long if long >= 1_000.0 => format!("{:.2} s", long / 1_000.0),
        short if short >= 100.0 => format!("{short:.0} ms"),
        short => format!("{short:.1} ms"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
