//! Explanations of a plan, for people.

use packhorse_cluster::{Bound, Explanation};

use crate::output;

/// Writes a paragraph for every model that is not served; a line if all are.
pub(super) fn print<'e>(
    explained: impl Iterator<Item = (String, &'e Explanation)>,
) -> anyhow::Result<()> {
    let (mut any, mut short) = (false, false);
    for (model, explanation) in explained {
        any = true;
        if explanation.bound != Bound::Rate {
            short = true;
            output::line(format!("\n{}", paragraph(&model, explanation)))?;
        }
    }
    if any && !short {
        output::line("\nall models are served: nothing but their rates bounds them")?;
    }
    Ok(())
}

fn paragraph(model: &str, explanation: &Explanation) -> String {
    let mut text = format!(
        "{model}: {:.1} % of its requests in time by the estimate, bound by {}.",
        explanation.served_fraction * 100.0,
        explanation.bound
    );
    let remedies = explanation.remedies.iter().map(|remedy| {
        format!(
            "\n  {} would do: {:.1} % in time",
            remedy.change,
            remedy.served_fraction * 100.0
        )
    });
    text.extend(remedies);
    if !explanation.complete {
        text.push_str("\n  Time ran out: there may be more that would do, or less.");
    } else if explanation.remedies.is_empty() {
        text.push_str("\n  No single change that was tried would do.");
    }
    text
}
