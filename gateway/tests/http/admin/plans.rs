//! `/v1/plan`, `/v1/plans`, `/v1/policy` and `/v1/goodput`.

use serde_json::{Value, json};

use packhorse_placement::Budget;
use packhorse_simulator::Scenario;

use crate::support::{
    agent::{Agent, devices},
    gateway::Gateway,
};

#[tokio::test]
async fn plans_are_kept_compared_and_told_apart() {
    let gateway = Gateway::start().await;
    gateway.get("/v1/plan").await.error(404);
    assert_eq!(gateway.get("/v1/plans").await.ok(200), json!([]));
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    let first = gateway.get("/v1/plan").await.ok(200);
    gateway.register("b").await;
    agent.work_until_ready(&gateway, "b").await;
    let second = gateway.get("/v1/plan").await.ok(200);

    let generations = |plan: &Value| plan["generation"].as_u64().unwrap();
    assert!(generations(&first) < generations(&second));
    let listed = gateway.get("/v1/plans").await.ok(200);
    for field in [
        "generation",
        "policy",
        "created_unix_ms",
        "reason",
        "solve_ms",
        "predicted_goodput_rps",
    ] {
        assert_eq!(listed[0][field], second[field], "{field}");
    }
    assert_eq!(
        (&listed[0]["replicas"], &listed[0]["models"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(listed[0]["devices_used"], second["devices_used"]);
    assert_eq!(listed[0]["unserved"], json!([]));
    let path = format!("/v1/plans?limit=1&before={}", generations(&second));
    let limited = gateway.get(&path).await.ok(200);
    assert_eq!(limited.as_array().unwrap().len(), 1);
    let path = format!("/v1/plans/{}", generations(&second));
    assert_eq!(gateway.get(&path).await.ok(200), second);
    let path = format!(
        "/v1/plans/{}/diff/{}",
        generations(&first),
        generations(&second)
    );
    let diff = gateway.get(&path).await.ok(200);
    assert_eq!((&diff["kept"], &diff["removed"]), (&json!(1), &json!([])));
    assert_eq!(diff["added"][0]["model"], "b");
    gateway.get("/v1/plans/4711").await.error(404);
    gateway.get("/v1/plans/x").await.error(400);
    gateway.get("/v1/plans?limit=0").await.error(400);
}

/// The replicas of a plan as text: model, device and batch size.
fn replicas(plan: &Value) -> Vec<String> {
    let replicas = plan["replicas"].as_array().unwrap().iter();
    replicas
        .map(|replica| {
            let (model, version) = (&replica["model"], &replica["version"]);
            let (device, batch) = (&replica["device"], &replica["batch_size"]);
            format!(
                "{}:{version} on {} by {batch}",
                model.as_str().unwrap(),
                device.as_str().unwrap()
            )
        })
        .collect()
}

#[tokio::test]
async fn the_plan_for_the_exported_scenario_is_the_one_that_the_gateway_would_make() {
    let gateway = Gateway::start().await;
    let mut agent = Agent {
        devices: devices("T4", 350),
        ..Agent::new("n")
    };
    for model in ["a", "b", "c"] {
        gateway.register(model).await;
        agent.work_until_ready(&gateway, model).await;
    }
    // The node keeps its replicas, and another one takes what they cannot serve.
    gateway.post("/v1/nodes/n/cordon", &json!({})).await.ok(200);
    let mut other = Agent::new("o");
    let change = json!({"rate_rps": 700});
    gateway.patch("/v1/models/a", &change).await.ok(200);
    other.work_until_ready(&gateway, "a").await;

    let exported = gateway.get("/v1/plan/scenario").await;
    assert_eq!(exported.status, 200);
    let text = String::from_utf8(exported.body).unwrap();
    let scenario = Scenario::parse(&text, &mut |path| Err(path.to_owned()));
    let scenario = scenario.unwrap_or_else(|e| panic!("{e}\n{text}"));
    let context = &scenario.context;
    let policy = packhorse_placement::policy(context.policy.as_deref().unwrap()).unwrap();
    let input = scenario.planning_input(
        policy.name.to_owned(),
        context.options.unwrap(),
        context.discipline.unwrap(),
    );
    let plan = input.place(|problem| policy.place(problem, &mut Budget::unlimited()));
    let plan = plan.unwrap().plan;
    let named = plan.replicas.iter().map(|replica| {
        let model = &input.problem.models[replica.model.0].id;
        let device = &input.devices[replica.device.0];
        format!("{model} on {device} by {}", replica.batch_size)
    });
    let kept = input.kept(&plan).into_iter();
    let kept = kept.map(|spec| format!("{} on {} by {}", spec.model, spec.device, spec.batch_size));
    let (named, kept): (Vec<String>, Vec<String>) = (named.collect(), kept.collect());
    assert_eq!((named.is_empty(), kept.len()), (false, 3), "{text}");
    let mut offline = [named, kept].concat();

    let preview = gateway.post("/v1/plans/preview", &json!({})).await.ok(200);
    let mut live = replicas(&preview["plan"]);
    offline.sort_unstable();
    live.sort_unstable();
    assert_eq!(offline, live, "{text}");
}

#[tokio::test]
async fn a_preview_answers_and_changes_nothing() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    for model in ["a", "b"] {
        gateway.register(model).await;
        agent.work_until_ready(&gateway, model).await;
    }
    let before = gateway.get("/v1/plan").await.ok(200);
    let preview = gateway
        .post(
            "/v1/plans/preview",
            &json!({"policy": "exclusive", "remove": ["b"]}),
        )
        .await
        .ok(200);
    assert_eq!(preview["plan"]["policy"], "exclusive");
    assert_eq!(preview["plan"]["generation"], json!(null));
    assert_eq!(preview["plan"]["replicas"].as_array().unwrap().len(), 1);
    assert_eq!(preview["diff"]["removed"][0]["model"], "b");
    assert_eq!(preview["current"], before);

    let nothing = json!({"remove": ["a", "b"]});
    let preview = gateway.post("/v1/plans/preview", &nothing).await.ok(200);
    assert_eq!(preview["plan"]["predicted_goodput_rps"].to_string(), "0.0");

    // `exclusive` serves one of the two models with one device, and both with two.
    let more = json!({"policy": "exclusive", "devices": [{"kind": "T4", "count": 1}]});
    let preview = gateway.post("/v1/plans/preview", &more).await.ok(200);
    assert_eq!(preview["plan"]["unserved"], json!([]));
    assert_eq!(preview["plan"]["devices_used"], 2);
    // No plan can serve more than the 50 requests/s of each.
    assert!((1.0..=100.0).contains(&preview["bound_rps"].as_f64().unwrap()));
    let none = json!({"devices": [{"kind": "T4", "count": -1}]});
    let preview = gateway.post("/v1/plans/preview", &none).await.ok(200);
    assert_eq!(preview["plan"]["devices_used"], 0);
    assert_eq!(preview["bound_rps"].to_string(), "0.0");
    assert_eq!(preview["diff"]["removed"].as_array().unwrap().len(), 2);
    // A rate that one device cannot hold.
    let faster = json!({"models": [{"name": "a", "rate_rps": 5000}]});
    let preview = gateway.post("/v1/plans/preview", &faster).await.ok(200);
    assert!(
        preview["plan"]["models"][0]["predicted_goodput_rps"]
            .as_f64()
            .unwrap()
            < 5000.0
    );

    // A model that is like another one, with a rate of its own; a device more for each.
    let like = json!({
        "policy": "exclusive",
        "models": [{"name": "c", "profile_of": "a", "rate_rps": 7}],
        "devices": [{"kind": "T4", "count": 2}],
    });
    let preview = gateway.post("/v1/plans/preview", &like).await.ok(200);
    assert_eq!(preview["plan"]["unserved"], json!([]));
    let added = &preview["plan"]["models"][2];
    assert_eq!(
        (&added["name"], &added["version"]),
        (&json!("c"), &json!(1))
    );
    assert_eq!(added["rate_rps"].as_f64(), Some(7.0));

    assert_eq!(gateway.get("/v1/plan").await.ok(200), before);
    assert_eq!(
        gateway.get("/v1/policy").await.ok(200)["policy"],
        packhorse_placement::DEFAULT_POLICY
    );
    for bad in [
        json!({"policy": "best"}),
        json!({"discipline": "lottery"}),
        json!({"options": {"objective": "fame"}}),
        json!({"options": {"prefer": "small-batch"}}),
        json!({"models": [{"name": "unheard-of"}]}),
        json!({"models": [{"name": "a", "slo_ms": 0}]}),
        json!({"models": [{"name": "a", "priority": 10}]}),
        json!({"models": [{"name": "c", "profile_of": "unheard-of"}]}),
        json!({"models": [{"name": "b", "profile_of": "a"}]}),
        json!({"models": [{"name": "c", "profile_of": "a"}, {"name": "c", "profile_of": "a"}]}),
        json!({"models": [{"name": "c", "profile_of": "a", "rate_rps": -1}]}),
        json!({"remove": ["unheard-of"]}),
        json!({"devices": [{"kind": "abacus", "count": 1}]}),
        json!({"devices": [{"kind": "T4", "count": 4_000_000_000_u32}]}),
        json!({"devices": [{"kind": "T4", "count": 2_000_000_000}]}),
        json!({"devices": [{"kind": "T4", "count": -2}]}),
        json!({"devices": [{"kind": "T4", "count": i32::MIN}]}),
    ] {
        gateway.post("/v1/plans/preview", &bad).await.error(400);
    }
}

#[tokio::test]
async fn a_preview_with_another_priority_serves_that_model_first() {
    let gateway = Gateway::with_flags(&["--policy=exclusive"]).await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    // One device is not enough for both.
    gateway.register("b").await;
    let unplaced = |view: &Value| view["state"] == "unplaced";
    agent.work_until(&gateway, "b", unplaced).await;
    // The models that get all of their 50 requests/s.
    let served = async |models: Value| {
        let request = json!({ "models": models });
        let preview = gateway.post("/v1/plans/preview", &request).await.ok(200);
        let models = preview["plan"]["models"].as_array().unwrap().clone();
        let served = models.into_iter().filter(|model| {
            let goodput = model["predicted_goodput_rps"].as_f64().unwrap();
            goodput > 49.9
        });
        served
            .map(|model| model["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(served(json!([])).await, ["a"]);
    assert_eq!(served(json!([{"name": "b", "priority": 9}])).await, ["b"]);
    assert_eq!(served(json!([{"name": "a", "priority": 0}])).await, ["b"]);
    let added = json!([{"name": "c", "profile_of": "a", "rate_rps": 50, "priority": 9}]);
    assert_eq!(served(added).await, ["c"]);
}

#[tokio::test]
async fn an_unknown_policy_is_refused_with_the_names_there_are() {
    let gateway = Gateway::start().await;
    let before = gateway.get("/v1/policy").await.ok(200);
    assert_eq!(
        (&before["policy"], &before["discipline"]),
        (
            &json!(packhorse_placement::DEFAULT_POLICY),
            &json!("deadline")
        )
    );
    let message = gateway
        .put("/v1/policy", &json!({"policy": "best"}))
        .await
        .error(400);
    assert!(
        message.contains("first-fit") && message.contains("exclusive"),
        "{message}"
    );
    let message = gateway
        .put("/v1/policy", &json!({"discipline": "lottery"}))
        .await
        .error(400);
    assert!(message.contains("deadline"), "{message}");
    assert_eq!(gateway.get("/v1/policy").await.ok(200), before);
}

#[tokio::test]
async fn a_discipline_of_the_simulator_is_listed_and_refused() {
    let gateway = Gateway::start().await;
    let before = gateway.get("/v1/policy").await.ok(200);
    let disciplines = before["disciplines"].as_array().unwrap();
    for (name, live) in [("aimd", true), ("flex", false), ("clockwork", false)] {
        let expected = json!({"name": name, "live": live});
        assert!(disciplines.contains(&expected), "{disciplines:?}");
        if live {
            continue;
        }
        let change = json!({ "discipline": name });
        for message in [
            gateway.put("/v1/policy", &change).await.error(400),
            gateway.post("/v1/plans/preview", &change).await.error(400),
        ] {
            let expected = format!("discipline: the discipline {name} runs in the simulator only");
            assert!(message.contains(&expected), "{message}");
        }
    }
    assert_eq!(gateway.get("/v1/policy").await.ok(200), before);
}

#[tokio::test]
async fn options_are_asked_with_and_say_what_is_wrong_with_them() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    // Workers do not measure occupancy: what a policy misses tells what it looked for.
    let missed = async |options: Value| {
        let request = json!({"policy": "usher", "options": options});
        let preview = gateway.post("/v1/plans/preview", &request).await.ok(200);
        let shortfall = &preview["plan"]["models"][0]["shortfall"];
        shortfall.as_str().unwrap().to_owned()
    };
    assert_eq!(
        missed(json!({})).await,
        "its profiles have no achieved_occupancy_pct"
    );
    assert_eq!(
        missed(json!({"compute_metric": "sm"})).await,
        "its profiles have no sm_utilization_pct"
    );
    for (options, said) in [
        (
            json!({"compute_metric": "heat"}),
            "options.compute_metric: unknown compute metric \"heat\": expected one of achieved, mean, sm",
        ),
        (
            json!({"objective": "fame"}),
            "options.objective: unknown objective \"fame\": expected one of goodput, max-min, blend",
        ),
    ] {
        for message in [
            gateway
                .put("/v1/policy", &json!({"options": options}))
                .await
                .error(400),
            gateway
                .post("/v1/plans/preview", &json!({"options": options}))
                .await
                .error(400),
        ] {
            assert!(message.starts_with(said), "{message}");
        }
    }
    let message = gateway
        .put("/v1/policy", &json!({"options": {"nexus_published": 1}}))
        .await
        .error(400);
    assert!(message.contains("options.nexus_published"), "{message}");
}

#[tokio::test]
async fn options_stay_chosen_until_others_take_their_place() {
    let gateway = Gateway::start().await;
    let own = json!({
        "compute_metric": null, "objective": "goodput", "prefer_small_batch": false, "nexus_published": false,
        "compute_shares": "never", "effort": 1, "batch_step": "own", "latency_model": "profile", "herd_greedy": false,
    });
    assert_eq!(gateway.get("/v1/policy").await.ok(200)["options"], own);
    let chosen = json!({
        "compute_metric": "mean", "objective": "max-min", "prefer_small_batch": true, "nexus_published": true,
        "compute_shares": "auto", "effort": 10, "batch_step": "bda", "latency_model": "inss", "herd_greedy": true,
    });
    let change = json!({"policy": "ao-milp", "options": chosen});
    let view = gateway.put("/v1/policy", &change).await.ok(200);
    assert_eq!(view["options"], chosen);
    let other = json!({"policy": "usher"});
    let view = gateway.put("/v1/policy", &other).await.ok(200);
    assert_eq!(view["options"], chosen);
    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/policy").await.ok(200);
    assert_eq!(
        (&view["policy"], &view["options"]),
        (&json!("usher"), &chosen)
    );
    let view = gateway
        .put("/v1/policy", &json!({"options": {}}))
        .await
        .ok(200);
    assert_eq!(view["options"], own);
}

#[tokio::test]
async fn a_policy_stays_chosen_and_is_planned_with() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    gateway
        .put("/v1/policy", &json!({"policy": "exclusive"}))
        .await
        .ok(200);
    gateway.register("b").await;
    let view = agent
        .work_until(&gateway, "b", |view| view["state"] == "unplaced")
        .await;
    let reason = view["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("the plan has no replica of the model: "),
        "{reason}"
    );
    let gateway = gateway.restarted().await;
    assert_eq!(
        gateway.get("/v1/policy").await.ok(200)["policy"],
        "exclusive"
    );
}

#[tokio::test]
async fn goodput_is_told_per_model_and_window() {
    let gateway = Gateway::start().await;
    gateway.register("m").await;
    let mut goodput = gateway.get("/v1/goodput?window_s=10").await.ok(200);
    for _ in 0..500 {
        if goodput["models"] != json!([]) {
            break;
        }
        goodput = gateway.get("/v1/goodput?window_s=10").await.ok(200);
    }
    assert_eq!(goodput["window_s"], 10.0);
    assert_eq!(goodput["models"][0]["name"], "m");
    for bad in ["0", "301", "x", "-1"] {
        gateway
            .get(&format!("/v1/goodput?window_s={bad}"))
            .await
            .error(400);
    }
}

#[tokio::test]
async fn a_preview_explains_what_bounds_each_model_and_what_would_serve_it() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    for model in ["a", "b"] {
        gateway.register(model).await;
        agent.work_until_ready(&gateway, model).await;
    }
    let asked = json!({"policy": "exclusive", "explain": true});
    let preview = gateway.post("/v1/plans/preview", &asked).await.ok(200);
    let unserved = preview["plan"]["unserved"][0].as_str().unwrap();
    for model in preview["plan"]["models"].as_array().unwrap() {
        let explanation = &model["explanation"];
        assert_eq!(explanation["complete"], true);
        if model["name"] == unserved {
            assert_eq!(explanation["bound"], json!({"by": "device-time"}));
            let remedy = &explanation["remedies"][0];
            assert_eq!(
                (&remedy["change"], &remedy["kind"], &remedy["count"]),
                (&json!("add-devices"), &json!("T4"), &json!(1))
            );
        } else {
            assert_eq!(explanation["bound"], json!({"by": "rate"}));
            assert_eq!(explanation["remedies"], json!([]));
        }
    }
    let unasked = json!({"policy": "exclusive"});
    let preview = gateway.post("/v1/plans/preview", &unasked).await.ok(200);
    assert_eq!(preview["plan"]["models"][0].get("explanation"), None);
}

#[tokio::test]
async fn the_plan_in_force_is_explained() {
    let gateway = Gateway::with_flags(&["--policy", "exclusive"]).await;
    gateway.get("/v1/plan?explain=true").await.error(404);
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    gateway.register("b").await;
    agent
        .work_until(&gateway, "b", |view| view["state"] == "unplaced")
        .await;

    let explained = gateway.get("/v1/plan?explain=true").await.ok(200);
    let mut without = explained.clone();
    for model in without["models"].as_array_mut().unwrap() {
        model.as_object_mut().unwrap().remove("explanation");
    }
    assert_eq!(gateway.get("/v1/plan").await.ok(200), without);
    assert_eq!(gateway.get("/v1/plan?explain=false").await.ok(200), without);
    let explanation = |name: &str| {
        let models = explained["models"].as_array().unwrap();
        let model = models.iter().find(|model| model["name"] == name).unwrap();
        model["explanation"].clone()
    };
    assert_eq!(explanation("a")["bound"], json!({"by": "rate"}));
    assert_eq!(explanation("b")["bound"], json!({"by": "device-time"}));
    assert_eq!(explanation("b")["served_fraction"], 0.0);
    let remedy = explanation("b")["remedies"][0].clone();
    assert_eq!(
        (&remedy["change"], &remedy["kind"], &remedy["count"]),
        (&json!("add-devices"), &json!("T4"), &json!(1))
    );
    for bad in ["explain=maybe", "explian=true"] {
        gateway.get(&format!("/v1/plan?{bad}")).await.error(400);
    }
}

/// The fraction of a model's requests in full batches of 8 that is in time with the discipline `fixed-wait`.
async fn served_by_fixed_wait(max_batch_wait_ms: u32) -> f64 {
    let wait = format!("--max-batch-wait-ms={max_batch_wait_ms}");
    let flags = ["--policy=exclusive", "--discipline=fixed-wait", &wait];
    let gateway = Gateway::with_flags(&flags).await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    gateway.patch("/v1/models/a", &json!({"rate_rps": 2})).await;
    agent.work_until_ready(&gateway, "a").await;
    let explained = gateway.get("/v1/plan?explain=true").await.ok(200);
    let fraction = &explained["models"][0]["explanation"]["served_fraction"];
    fraction.as_f64().unwrap()
}

#[tokio::test]
async fn policies_reckon_with_the_batch_wait_that_the_gateway_was_given() {
    // A batch of 8 at 2 requests/s would take 4 s to fill; the objective is 200 ms.
    let (short, long) = (
        served_by_fixed_wait(20).await,
        served_by_fixed_wait(5000).await,
    );
    assert!(short > 0.95 && long < 0.5, "{short} {long}");
}

#[tokio::test]
async fn duty_cycles_of_a_plan_are_shown_also_where_nothing_else_of_it_is_new() {
    let gateway = Gateway::with_flags(&["--policy", "first-fit"]).await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    let before = gateway.get("/v1/plan").await.ok(200);
    assert_eq!(before["replicas"][0].get("duty_cycle_ms"), None);
    let nexus = json!({"policy": "nexus"});
    gateway.put("/v1/policy", &nexus).await.ok(200);
    let holds = |view: &Value| view["state"] == "ready" && view["reason"].is_null();
    let mut after = before.clone();
    for _ in 0..500 {
        agent.work_until(&gateway, "a", holds).await;
        after = gateway.get("/v1/plan").await.ok(200);
        if after["policy"] == "nexus" {
            break;
        }
    }
    let cycle = after["replicas"][0]["duty_cycle_ms"].as_f64().unwrap();
    assert!(cycle > 0.0 && cycle <= 200.0, "{cycle}");
}

#[tokio::test]
async fn a_preview_has_few_changes_whatever_they_are() {
    let gateway = Gateway::start().await;
    gateway.register("m").await;
    let changes = |count: usize| vec![json!({"name": "m", "rate_rps": 1}); count];
    let preview = async |body: Value| gateway.post("/v1/plans/preview", &body).await;
    preview(json!({"models": changes(1024)})).await.ok(200);
    for (body, message) in [
        (
            json!({"models": changes(1025)}),
            "models: at most 1024 models are allowed in one preview",
        ),
        (
            json!({"remove": vec!["m"; 1025]}),
            "remove: at most 1024 models are allowed in one preview",
        ),
        (
            json!({"devices": vec![json!({"kind": "T4", "count": 1}); 65]}),
            "devices: at most 64 entries are allowed in one preview",
        ),
    ] {
        assert_eq!(preview(body).await.error(400), message);
    }
}
