//! The page of results: `docs/experiments/inss.md`.

use std::{fmt::Write as _, path::Path};

use packhorse_cluster::Discipline;
use packhorse_placement::inss::Network;
use packhorse_simulator::Scenario;

use crate::{
    evaluation::Score,
    ground::{Outcome, Planner, setting, waiting_half_the_slo},
    training::Training,
};

/// Those who are compared, ours last.
const ENTRANTS: [Planner; 5] = [
    Planner::Actor,
    Planner::Policy("gpulet"),
    Planner::Policy("gslice"),
    Planner::Policy("igniter"),
    Planner::Policy("goodput"),
];

/// The batch decisions on GPUlet's plans.
const DECISIONS: [Planner; 3] = [
    Planner::HalfSlo("gpulet"),
    Planner::Bda("gpulet"),
    Planner::Policy("gpulet"),
];

/// The differences from the paper that bear on the order.
const ORDER: &str = "\nWhere the order is not the paper's, three differences count. A share below a model's utilisation costs more than in proportion here \
     (the exponent 1.6, fitted to the thesis' measurements), and `inss` has to give every replica a share; its network decides for any models, after 16,000 updates, while the paper's knows \
     its six models and had 300,000; and the reward counts late models, not requests. `goodput` serves none of \
     iGniter's models, because their profiles do not say how much memory they need. `fixed-wait` waits for up to 100 ms, longer than the SLOs there.\n";

/// A group of settings.
struct Ground {
    name: &'static str,
    settings: Vec<Scenario>,
    /// True if there are coefficients for `igniter`.
    has_igniter: bool,
}

fn grounds(root: &Path) -> anyhow::Result<Vec<Ground>> {
    let mut igniter = Vec::new();
    for (gpus, rates) in [
        (1, 0.5),
        (1, 1.0),
        (1, 1.5),
        (2, 2.0),
        (2, 3.0),
        (4, 4.0),
        (4, 6.0),
    ] {
        igniter.push(setting(root, "igniter/readme.toml", gpus, rates)?);
    }
    let mut vision = Vec::new();
    for gpus in 1..=6 {
        vision.push(setting(root, "thesis/6.1-gpus-1.toml", gpus, 1.0)?);
    }
    let mut mixed = Vec::new();
    for gpus in 1..=8 {
        mixed.push(setting(root, "thesis/6.10-gpus-1.toml", gpus, 1.0)?);
    }
    let ground = |name, settings, has_igniter| Ground {
        name,
        settings,
        has_igniter,
    };
    Ok(vec![
        ground("iGniter's models", igniter, true),
        ground("6.1", vision, false),
        ground("6.10", mixed, false),
    ])
}

/// Returns the text of the page.
///
/// # Errors
/// If a scenario cannot be read or simulated.
pub(crate) fn page(
    root: &Path,
    training: &Training,
    others: &[(&str, Score)],
) -> anyhow::Result<String> {
    let mut text = String::from(
        "# InSS' scheduler\n\n\
         The training of the policy `inss`, its results beside the policies that the paper compares it with, and its batch decision on GPUlet. Written, with the weights, by\n\n    \
         cargo xtask train inss\n\n\
         which trains with one seed on one core and goes on where it was stopped. InSS' latency model, fitted to iGniter's measurements and judged on its pairs, and the 28 published measurements of the \
         paper are in [Interference](interference.md); `inss` beside every other published scheduler is in [Published schedulers](published.md) from that page's next run.\n",
    );
    learning(&mut text, training, others)?;
    let actor = training.actor();
    let grounds = grounds(root)?;
    comparison(&mut text, actor, &grounds)?;
    decision(&mut text, actor, root)?;
    Ok(text)
}

fn learning(
    text: &mut String,
    training: &Training,
    others: &[(&str, Score)],
) -> anyhow::Result<()> {
    text.push_str(
        "\n## Training\n\n![Requests in time on held-out problems, and the reward, by updates](inss-training.svg)\n\n\
         The environment is analytic: rewards follow from our estimate of a plan's late requests. Every 600 updates the actor is scored without randomness on 48 problems that are not in the training, by the \
         estimate, and on twelve of them by the simulator (4 s of arrivals). The best actor by the estimate is kept. *Late* is the mean over models, which the reward weighs 100 times as much as throughput; *in \
         time* is the mean over problems of the part of all requests. The problems have between a fifth and 1.6 times the load of their devices, so that nobody answers everything.\n\n\
         | | updates | mean reward in training | in time | simulated | late, mean over models |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let points = training.points();
    let every = (points.len() / 8).max(1);
    let chosen = points
        .iter()
        .enumerate()
        .filter(|(index, _)| index.is_multiple_of(every) || index + 1 == points.len());
    let percents = |score: &Score| {
        format!(
            "{:.1} % | {:.1} % | {:.1} %",
            100.0 * score.in_time,
            100.0 * score.simulated,
            100.0 * score.late
        )
    };
    for (_, point) in chosen {
        let reward = if point.update == 0 {
            "–".to_owned()
        } else {
            format!("{:.2}", point.reward)
        };
        writeln!(
            text,
            "| inss | {} | {reward} | {} |",
            point.update,
            percents(&point.score)
        )?;
    }
    for (name, score) in others {
        writeln!(text, "| {name} | – | – | {} |", percents(score))?;
    }
    text.push_str("\nAll points are in [inss-training.csv](inss-training.csv).\n");
    Ok(())
}

fn comparison(text: &mut String, actor: &Network, grounds: &[Ground]) -> anyhow::Result<()> {
    text.push_str(
        "\n## Beside the policies of the paper\n\n\
         The paper reports 28 % more throughput than GPUlet, 48 % more than GSLICE and 190 % more than iGniter, on four RTX 2060 whose profiles are not published. Here: iGniter's example (AlexNet, ResNet50 and \
         VGG19 at 500, 400 and 200 requests/s within 15, 40 and 60 ms) with half to six times the rates on one to four GPUs, the only models with coefficients for `igniter`; and the thesis' figures 6.1 and \
         6.10 with all numbers of GPUs. Nominal world, three seeds. Requests per second in time, summed over the settings, and the part of those that were sent:\n\n\
         | | dispatcher |",
    );
    for ground in grounds {
        write!(text, " {} |", ground.name)?;
    }
    text.push_str("\n|---|---|");
    text.push_str(&"--:|".repeat(grounds.len()));
    text.push('\n');
    for discipline in [Discipline::Deadline, Discipline::FixedWait] {
        for planner in ENTRANTS {
            write!(text, "| {} | {discipline} |", planner.label())?;
            for ground in grounds {
                if planner == Planner::Policy("igniter") && !ground.has_igniter {
                    text.push_str(" – |");
                    continue;
                }
                let sum = sum(planner, actor, &ground.settings, discipline)?;
                let part = 100.0 * sum.goodput / sum.offered;
                write!(text, " {:.0} ({part:.1} %) |", sum.goodput)?;
            }
            text.push('\n');
        }
    }
    text.push_str(ORDER);
    Ok(())
}

fn sum(
    planner: Planner,
    actor: &Network,
    settings: &[Scenario],
    discipline: Discipline,
) -> anyhow::Result<Outcome> {
    let mut sum = Outcome::default();
    for scenario in settings {
        sum += planner.run(actor, scenario, discipline)?;
    }
    Ok(sum)
}

fn decision(text: &mut String, actor: &Network, root: &Path) -> anyhow::Result<()> {
    text.push_str(
        "\n## BDA on GPUlet\n\n\
         The paper's GPUlet takes the largest batch that computes within half of the SLO and waits for it for the other half (section 6.1); with BDA its throughput is 11 % higher. Here the placement and the shares are \
         those of `gpulet` in all rows. `fixed-wait` waits for half of the SLO at most. 6.1 with one to six GPUs and an SLO of 200 ms, summed:\n\n\
         | | dispatcher | in time/s | beside SLO / 2 |\n|---|---|--:|--:|\n",
    );
    let mut settings = Vec::new();
    for gpus in 1..=6 {
        let scenario = setting(root, "thesis/6.1-gpus-1.toml", gpus, 1.0)?;
        settings.push(waiting_half_the_slo(scenario));
    }
    for discipline in [Discipline::FixedWait, Discipline::Deadline] {
        let mut baseline = None;
        for planner in DECISIONS {
            let sum = sum(planner, actor, &settings, discipline)?;
            let baseline = *baseline.get_or_insert(sum.goodput);
            writeln!(
                text,
                "| {} | {discipline} | {:.0} | {:+.1} % |",
                planner.label(),
                sum.goodput,
                100.0 * (sum.goodput / baseline - 1.0)
            )?;
        }
    }
    Ok(())
}
