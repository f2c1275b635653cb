//! The figure of the page: requests per second over those of the plain two hops.

use std::fmt::Write as _;

use super::report::{Results, find};

/// The width of a bar, in pixels.
const BAR: f64 = 22.0;
/// The gap between two groups of bars, in pixels.
const GAP: f64 = 26.0;
/// The height of the plot area, in pixels.
const HEIGHT: f64 = 220.0;
/// The margin around it, in pixels.
const MARGIN: f64 = 50.0;
/// The ratio at the top of the axis; higher bars are cut, with their number above them.
const TOP: f64 = 2.0;
/// The colours of the servers.
const COLOURS: [&str; 6] = [
    "#bbbbbb", "#8d6a9f", "#5b8c5a", "#9bbf85", "#1b6ca8", "#d98032",
];

/// Draws a group of bars per payload and concurrency, and a bar per server.
pub(super) fn draw(results: &Results) -> anyhow::Result<String> {
    let mut servers: Vec<&str> = Vec::new();
    let mut groups = Vec::new();
    for row in &results.binary {
        if !servers.contains(&row.server.as_str()) {
            servers.push(&row.server);
        }
        let group = (row.payload, row.concurrency);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let group_width = BAR * servers.len() as f64 + GAP;
    let width = group_width * groups.len() as f64;
    let (all_width, all_height) = (width + 2.0 * MARGIN, HEIGHT + 2.5 * MARGIN);
    let y = |ratio: f64| MARGIN + HEIGHT * (1.0 - ratio.min(TOP) / TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for step in 0..=4 {
        let ratio = TOP * f64::from(step) / 4.0;
        writeln!(
            svg,
            "<path d=\"M{MARGIN} {:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.1}</text>",
            y(ratio),
            MARGIN + width,
            MARGIN - 6.0,
            y(ratio) + 4.0
        )?;
    }
    for (i, (payload, concurrency)) in groups.iter().enumerate() {
        let left = MARGIN + GAP / 2.0 + group_width * i as f64;
        let base =
            find(&results.binary, *payload, *concurrency, "two hops").map(|row| row.rate_rps);
        for (j, (server, colour)) in servers.iter().zip(COLOURS).enumerate() {
            let row = find(&results.binary, *payload, *concurrency, server);
            let (Some(row), Some(base)) = (row, base) else {
                continue;
            };
            let ratio = row.rate_rps / base;
            let x = left + BAR * j as f64;
            writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"9\">{ratio:.2}</text>",
                y(ratio),
                BAR - 2.0,
                MARGIN + HEIGHT - y(ratio),
                x + BAR / 2.0 - 1.0,
                y(ratio) - 3.0
            )?;
        }
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} × {concurrency}</text>",
            left + (group_width - GAP) / 2.0,
            MARGIN + HEIGHT + 18.0,
            payload.name()
        )?;
    }
    let mut x = MARGIN;
    for (server, colour) in servers.iter().zip(COLOURS) {
        let top = MARGIN + HEIGHT + 38.0;
        writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"11\" height=\"11\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\">{server}</text>",
            x + 16.0,
            top + 10.0
        )?;
        x += 36.0 + 7.0 * server.len() as f64;
    }
    writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{:.1}\">requests/s over the plain two hops; payload × clients at once</text>",
        MARGIN - 24.0
    )?;
    svg += "</svg>\n";
    Ok(svg)
}
