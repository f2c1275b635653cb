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

/// A configuration of Triton: what is read is a registration but for name, version and file.
pub(crate) fn triton_config(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let Ok(model) = packhorse_triton::read(text, "m") else {
        return;
    };
    for side in ["inputs", "outputs"] {
        let tensors = model.registration[side].as_array().expect("a list");
        assert!(!tensors.is_empty());
        let has_batch = model.registration["max_batch_size"] != 0;
        for tensor in tensors {
            let shape = tensor["shape"].as_array().expect("a list");
            assert!(!has_batch || shape[0] == -1, "{text}");
        }
    }
}
