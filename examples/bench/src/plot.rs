//! The ratios as a picture.

use std::fmt::Write;

use crate::report::{Report, median};

const WIDTH: f64 = 850.0;
const LABELS: f64 = 520.0;
const ROW: f64 = 18.0;

/// An SVG with a bar for each ratio; a line where both would be equal.
pub(crate) fn draw(report: &Report) -> String {
    let bars: Vec<(String, f64)> = report
        .figures
        .iter()
        .flat_map(|figure| {
            figure.against.iter().map(move |ratio| {
                let label = format!(
                    "{}, {}: {} / {}",
                    figure.database, figure.scenario, figure.name, ratio.of
                );
                (label, median(&ratio.values))
            })
        })
        .collect();
    let most = bars
        .iter()
        .map(|(_, ratio)| *ratio)
        .fold(2.0, f64::max)
        .min(6.0);
    let scale = (WIDTH - LABELS - 60.0) / most;
    let height = ROW * bars.len() as f64 + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"9\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (row, (label, ratio)) in bars.iter().enumerate() {
        let y = ROW * row as f64 + 6.0;
        let length = ratio.min(most) * scale;
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABELS}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"12\" fill=\"#4a7ab5\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\">{ratio:.2}</text>",
            LABELS - 6.0,
            y + 9.0,
            escape(label),
            LABELS + length + 4.0,
            y + 9.0,
        );
    }
    let one = LABELS + scale;
    let _ = writeln!(
        svg,
        "<line x1=\"{one:.1}\" y1=\"0\" x2=\"{one:.1}\" y2=\"{height:.0}\" stroke=\"#b54a4a\" stroke-dasharray=\"3\"/>\n</svg>"
    );
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
