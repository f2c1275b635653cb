//! The loss of the default search of `goodput` against one that is many times as long: a section of the report.

use std::fmt::Write as _;

use super::{machine, measured};

/// The heading of the section.
pub(super) const HEADING: &str = "\n## Against a long run\n";

/// Measures, and returns the section.
pub(super) fn section() -> anyhow::Result<String> {
    let text = measured("packhorse-simulator", "long_run", &[], "long-run.csv")?;
    let mut section = format!(
        "{HEADING}\nWhat the search of `goodput` loses because it ends soon and cuts large clusters into cells, on {}: the same problems with \
         `--effort` times as many changes and cells larger by the square root of that. *Load* is what the rates want of the devices' time in \
         full batches; replicas that run beside each other carry more than that. Both plans are judged by the estimate over the whole \
         cluster, and up to 100 devices by three simulated runs, too: percent of the requests that are in time. Seconds are of one \
         run.\n\n\
         | devices | models | load | effort | seconds: usual | long | estimated: usual | long | lost | simulated: usual | long | lost |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        machine()?
    );
    for line in text.lines().skip(1) {
        section += &row(line)?;
    }
    section += "\nNegative numbers are gains: the long search makes the estimate larger, with a share of the requests that is counted at a higher \
                rate, and the simulator need not agree.\n";
    Ok(section)
}

/// Converts a line of the benchmark into a row of the table.
fn row(line: &str) -> anyhow::Result<String> {
    let cells: Vec<&str> = line.split(',').collect();
    let [
        devices,
        models,
        load,
        effort,
        usual_s,
        usual_part,
        usual_simulated,
        long_s,
        long_part,
        long_simulated,
    ] = &cells[..]
    else {
        anyhow::bail!("long-run.csv has a line of {} cells", cells.len());
    };
    let mut row = format!(
        "| {devices} | {models} | {load} | {effort} | {:.3} | {:.1} |",
        usual_s.parse::<f64>()?,
        long_s.parse::<f64>()?
    );
    for (usual, long) in [(usual_part, long_part), (usual_simulated, long_simulated)] {
        if usual.is_empty() {
            row += " – | – | – |";
            continue;
        }
        let (usual, long) = (100.0 * usual.parse::<f64>()?, 100.0 * long.parse::<f64>()?);
        // Rounding first keeps a loss of zero from being printed as -0.
        let lost = ((long - usual) * 100.0).round() / 100.0 + 0.0;
        write!(row, " {usual:.2} | {long:.2} | {lost:.2} |")?;
    }
    Ok(row + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_row() {
        let simulated = row("24,20,0.9,100,0.0151,0.99,0.98,21.5,1,0.985").unwrap();
        assert_eq!(
            simulated,
            "| 24 | 20 | 0.9 | 100 | 0.015 | 21.5 | 99.00 | 100.00 | 1.00 | 98.00 | 98.50 | 0.50 |\n"
        );
        let estimated = row("6000,2000,0.9,10,0.7,1,,60,0.99999,").unwrap();
        assert!(
            estimated.ends_with("| 100.00 | 100.00 | 0.00 | – | – | – |\n"),
            "{estimated}"
        );
        assert!(row("24,20").is_err());
    }
}
