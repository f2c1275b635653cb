//! The recorded loads in `scenarios/azure`.

use anyhow::Context as _;

use crate::setting::root;

/// Returns the columns of a file of counts with their names, without the first column, which is the time.
pub(crate) fn columns(file: &str) -> anyhow::Result<Vec<(String, Vec<u64>)>> {
    let path = root().join("scenarios/azure").join(file);
    let mut reader = csv::Reader::from_path(&path).with_context(|| path.display().to_string())?;
    let names = reader.headers()?.iter().skip(1).map(str::to_owned);
    let mut columns: Vec<(String, Vec<u64>)> = names.map(|name| (name, Vec::new())).collect();
    for row in reader.records() {
        for (column, cell) in columns.iter_mut().zip(row?.iter().skip(1)) {
            column.1.push(cell.parse()?);
        }
    }
    Ok(columns)
}
