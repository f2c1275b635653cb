//! Families: which models may be variants of one, and what is planned for them.

use std::time::Duration;

use packhorse_cluster::{ModelSpec, Percent, ProfileTable, VariantOf};
use packhorse_control::{Command, ModelSpecChange};

use crate::virtual_cluster::{Settings, VirtualCluster, name, spec};

/// Returns the specification of a variant of the family `f`.
fn variant(model: &str, accuracy: f64, rate: f64) -> ModelSpec {
    ModelSpec {
        variant: Some(VariantOf {
            family: name("f"),
            accuracy: Percent::new(accuracy).unwrap(),
        }),
        ..spec(model, rate)
    }
}

fn register(cluster: &mut VirtualCluster, spec: ModelSpec) -> Result<(), String> {
    let registered = cluster.command_and_wait(Command::Register(Box::new(spec), 1));
    registered.map_err(|error| error.to_string())
}

fn change(
    cluster: &mut VirtualCluster,
    model: &str,
    change: ModelSpecChange,
) -> Result<(), String> {
    let changed = cluster.command_and_wait(Command::ChangeModel(name(model), None, change));
    changed.map_err(|error| error.to_string())
}

fn spec_of(cluster: &VirtualCluster, model: &str) -> ModelSpec {
    let model = cluster.controller().model(&model.parse().unwrap());
    ModelSpec::clone(&model.unwrap().spec)
}

#[test]
fn a_family_has_a_name_of_its_own_and_variants_that_answer_the_same_requests() {
    let mut cluster = VirtualCluster::new(Settings::default());
    register(&mut cluster, spec("a:1", 1.0)).unwrap();
    register(&mut cluster, variant("b:1", 80.0, 1.0)).unwrap();
    let wrong = |change: fn(&mut ModelSpec)| {
        let mut spec = variant("c:1", 70.0, 1.0);
        change(&mut spec);
        spec
    };
    let named = |spec: &mut ModelSpec, family: &str| {
        spec.variant.as_mut().unwrap().family = name(family);
    };
    let mut of_model = variant("c:1", 70.0, 1.0);
    named(&mut of_model, "a");
    let mut of_itself = variant("c:1", 70.0, 1.0);
    named(&mut of_itself, "c");
    for (spec, error) in [
        (
            spec("f:1", 1.0),
            "name: f is the name of a family; choose another",
        ),
        (of_model, "family: a is the name of a model; choose another"),
        (
            of_itself,
            "family: c is the name of a model; choose another",
        ),
        (
            spec("b:2", 1.0),
            "family: the other versions of model b are variants of f; name that family and an accuracy",
        ),
        (
            variant("a:2", 90.0, 1.0),
            "family: the other versions of model a are in no family; change that first, with PATCH /v1/models/a",
        ),
        (
            wrong(|spec| spec.slo = Duration::from_millis(100)),
            "slo_ms: expected the same as of b:1: variants of f answer the same requests",
        ),
        (
            wrong(|spec| spec.program.outputs[0].name = "z".to_owned()),
            "outputs: expected the same as of b:1: variants of f answer the same requests",
        ),
        (
            wrong(|spec| spec.program.max_batch_size = 8),
            "max_batch_size: expected the same as of b:1: variants of f answer the same requests",
        ),
    ] {
        assert_eq!(register(&mut cluster, spec), Err(error.to_owned()));
    }
    for number in 2..=16 {
        register(&mut cluster, variant(&format!("v{number}:1"), 1.0, 1.0)).unwrap();
    }
    assert_eq!(
        register(&mut cluster, variant("c:1", 70.0, 1.0)),
        Err("family: f has 16 variants already, which is the most".to_owned())
    );
    register(&mut cluster, variant("b:2", 82.0, 1.0)).unwrap();
    // Without variants there is no family, and its name is free.
    for number in 2..=16 {
        let removed = Command::RemoveModel(name(&format!("v{number}")), None);
        cluster.command_and_wait(removed).unwrap();
    }
    cluster
        .command_and_wait(Command::RemoveModel(name("b"), None))
        .unwrap();
    register(&mut cluster, spec("f:1", 1.0)).unwrap();
}

#[test]
fn the_slo_belongs_to_the_family_and_the_family_to_all_versions() {
    let mut cluster = VirtualCluster::new(Settings::default());
    register(&mut cluster, variant("b:1", 80.0, 1.0)).unwrap();
    register(&mut cluster, spec("a:1", 1.0)).unwrap();
    register(&mut cluster, spec("a:2", 1.0)).unwrap();
    let none = ModelSpecChange::default();
    let join = ModelSpecChange {
        family: Some(Some(name("f"))),
        ..none.clone()
    };
    assert_eq!(
        change(&mut cluster, "a", join.clone()),
        Err("accuracy: required for a model of a family".to_owned())
    );
    let accuracy = Percent::new(90.0).unwrap();
    let accurate = ModelSpecChange {
        accuracy: Some(accuracy),
        ..none.clone()
    };
    assert_eq!(
        change(&mut cluster, "a", accurate.clone()),
        Err("accuracy: only a model of a family has one: give family too".to_owned())
    );
    change(
        &mut cluster,
        "a",
        ModelSpecChange {
            accuracy: Some(accuracy),
            ..join
        },
    )
    .unwrap();
    for version in ["a:1", "a:2"] {
        assert_eq!(
            spec_of(&cluster, version).variant.unwrap().accuracy,
            accuracy
        );
    }
    // The accuracy belongs to the version.
    let better = Percent::new(91.0).unwrap();
    let accurate = ModelSpecChange {
        accuracy: Some(better),
        ..none.clone()
    };
    change(&mut cluster, "a", accurate).unwrap();
    assert_eq!(spec_of(&cluster, "a:2").variant.unwrap().accuracy, better);
    assert_eq!(spec_of(&cluster, "a:1").variant.unwrap().accuracy, accuracy);
    let slo = Duration::from_millis(150);
    let faster = ModelSpecChange {
        slo: Some(slo),
        ..none.clone()
    };
    change(&mut cluster, "b", faster).unwrap();
    for version in ["a:1", "a:2", "b:1"] {
        assert_eq!(spec_of(&cluster, version).slo, slo);
    }
    // All of it is stored.
    cluster.kill_gateway(true);
    cluster.start_gateway();
    assert_eq!(spec_of(&cluster, "a:1").slo, slo);
    assert_eq!(spec_of(&cluster, "a:2").variant.unwrap().accuracy, better);
    let leave = ModelSpecChange {
        family: Some(None),
        ..none
    };
    change(&mut cluster, "a", leave).unwrap();
    for version in ["a:1", "a:2"] {
        assert_eq!(spec_of(&cluster, version).variant, None);
    }
}

/// Returns the planned rates of the accurate and of the cheap variant.
fn planned(cluster: &VirtualCluster) -> [f64; 2] {
    ["good:1", "cheap:1"].map(|model| {
        let forecasts = cluster.controller().forecasts();
        let forecast = forecasts.get(&model.parse().unwrap());
        forecast.map_or(0.0, |forecast| forecast.rate.get())
    })
}

#[test]
fn the_rate_of_a_family_is_planned_for_its_most_accurate_variants_that_the_devices_can_carry() {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n1", "T4", 1, 8192);
    let rows = |model: &str, times: [f64; 2]| {
        let row = |(size, ms)| format!("{model},T4,{size},,{ms},,500,,,100\n");
        [1, 8].into_iter().zip(times).map(row).collect::<String>()
    };
    let header = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct\n";
    // At best 160 requests/s of the one, and 2000 of the other.
    let csv = [
        header,
        &rows("good", [20.0, 50.0]),
        &rows("cheap", [2.0, 4.0]),
    ]
    .concat();
    let profiles = ProfileTable::from_csv(&csv).unwrap();
    cluster
        .command_and_wait(Command::ImportProfiles(profiles))
        .unwrap();
    register(&mut cluster, variant("good:1", 90.0, 0.0)).unwrap();
    register(&mut cluster, variant("cheap:1", 70.0, 40.0)).unwrap();
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    let [good, cheap] = planned(&cluster);
    assert!(
        (39.0..41.0).contains(&good) && cheap < 0.1,
        "{good} {cheap}"
    );
    // More requests come than the accurate variant can answer, whichever variant answers them.
    cluster
        .counted
        .rates
        .insert("good:1".parse().unwrap(), 100.0);
    cluster
        .counted
        .rates
        .insert("cheap:1".parse().unwrap(), 500.0);
    cluster.run_until("some are planned for the cheap one", limit, |cluster| {
        let [good, cheap] = planned(cluster);
        good > 1.0 && cheap > 450.0 && (550.0..700.0).contains(&(good + cheap))
    });
    cluster
        .counted
        .rates
        .insert("cheap:1".parse().unwrap(), 0.0);
    cluster
        .counted
        .rates
        .insert("good:1".parse().unwrap(), 40.0);
    let limit = Duration::from_mins(10);
    cluster.run_until("the accurate one has all again", limit, |cluster| {
        let [good, cheap] = planned(cluster);
        (30.0..60.0).contains(&good) && cheap < 0.1
    });
}
