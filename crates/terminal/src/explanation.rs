//! Explanations of a plan as text: what limits each model.

use packhorse_cluster::{Bound, Explanation};

use crate::output;

/// Writes a paragraph for every model that a resource limits, or one line if no model is limited.
pub fn print<'e>(explained: impl Iterator<Item = (String, &'e Explanation)>) -> anyhow::Result<()> {
    let (mut explained_any, mut limited_any) = (false, false);
    for (model, explanation) in explained {
        explained_any = true;
        if explanation.bound != Bound::Rate {
            limited_any = true;
            output::print_line(format!("\n{}", paragraph(&model, explanation)))?;
        }
    }
    if explained_any && !limited_any {
        output::print_line("\nall models are fully served: only their rates limit their goodput")?;
    }
    Ok(())
}

fn paragraph(model: &str, explanation: &Explanation) -> String {
    let mut text = format!(
        "{model}: an estimated {:.1} % of its requests are answered in time, limited by {}.",
        explanation.served_fraction * 100.0,
        explanation.bound
    );
    let remedies = explanation.remedies.iter().map(|remedy| {
        format!(
            "\n  {} would suffice: {:.1} % in time",
            remedy.change,
            remedy.served_fraction * 100.0
        )
    });
    text.extend(remedies);
    if !explanation.complete {
        text.push_str("\n  The search stopped at its limit: other or smaller changes may suffice.");
    } else if explanation.remedies.is_empty() {
        text.push_str("\n  No single change that was tried would suffice.");
    }
    text
}
