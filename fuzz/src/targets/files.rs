//! Files that people write and programs exchange.

use packhorse_cluster::ProfileTable;
use packhorse_simulator::Scenario;

/// A table of profiles: one that is accepted is read again as it is written.
pub(crate) fn profile_csv(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    if let Ok(table) = ProfileTable::from_csv(text) {
        let written = table.to_csv();
        let again = ProfileTable::from_csv(&written).expect("a written table can be read");
        assert_eq!(again.to_csv(), written);
    }
}

/// A scenario, and behind a line of `---` the text of every file that it names.
pub(crate) fn scenario_toml(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let (scenario, file) = text.split_once("\n---\n").unwrap_or((text, ""));
    let mut load = |_: &str| Ok(file.to_owned());
    let _ = Scenario::parse(scenario, &mut load);
}
