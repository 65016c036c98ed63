use fastrand::Rng;
use pjrt_arena::units::Bytes;

use super::*;

fn parse(text: &str) -> Result<Launches, String> {
    Launches::parse("t", "t.json", text.as_bytes())
}

/// A trace of programs that only read arrays of 256 bytes, which exist at the end.
fn reading(limit: u64, launches: &[&[u32]]) -> Launches {
    let mut alive: Vec<u32> = launches.concat();
    alive.sort_unstable();
    alive.dedup();
    let alive: Vec<String> = alive.iter().map(|number| format!("#{number}")).collect();
    let launch = |(step, numbers): (usize, &&[u32])| {
        let arguments: Vec<_> = numbers.iter().map(|number| (format!("#{number}"), 256, false)).collect();
        let program = format!("jit_{}", numbers[0]);
        serde_json::json!({"step": step + 1, "program": program, "arguments": arguments, "results": []})
    };
    let launches: Vec<_> = launches.iter().enumerate().map(launch).collect();
    parse(&serde_json::json!({"limit": limit, "alive": alive, "launches": launches}).to_string()).expect("a good trace")
}

/// What goes out and comes back, in units of 256 bytes.
fn moved(trace: &Launches, policy: SpillPolicy) -> (u64, u64) {
    let policies = SpillPolicies(vec![policy]);
    let reports = compare(trace, &policies, None).expect("a small capacity");
    let [report] = &reports[..] else { panic!("{reports:?}") };
    (report.bytes_out / 256, report.bytes_back / 256)
}

#[test]
fn where_lru_brings_back_every_array_the_past_tells_which_can_stay() {
    // Three arrays in turn, with room for two.
    let turns = [&[1][..], &[2], &[3]].repeat(20);
    let trace = reading(512, &turns);
    // All but the first three launches find their array in the tier. Each array goes out once: it has a copy then.
    assert_eq!(moved(&trace, SpillPolicy::Lru), (3, 57));
    assert_eq!(moved(&trace, SpillPolicy::Fifo), (3, 57));
    // From the fifth launch on, every second one.
    assert_eq!(moved(&trace, SpillPolicy::Belady), (3, 28));
    let (out, back) = moved(&trace, SpillPolicy::Predict);
    assert_eq!(out, 3);
    // Until the loop has shown itself it is as LRU.
    assert!((28..=34).contains(&back), "{back}");
    let (out, back) = moved(&trace, SpillPolicy::Floor);
    assert!((1..=3).contains(&out) && (19..=28).contains(&back), "{out} {back}");
}

#[test]
fn lru_and_fifo_differ_where_an_array_is_used_in_between() {
    // When 3 comes, 1 is on the device for longest, and 2 was not used for longest.
    let trace = reading(512, &[&[1], &[2], &[1], &[3], &[1]]);
    assert_eq!(moved(&trace, SpillPolicy::Lru), (1, 0));
    assert_eq!(moved(&trace, SpillPolicy::Fifo), (2, 1));
    assert_eq!(moved(&trace, SpillPolicy::Belady), (1, 0));
    assert_eq!(moved(&trace, SpillPolicy::Floor), (1, 0));
}

#[test]
fn of_equals_the_one_with_a_copy_goes() {
    // When 3 comes, 1 and 2 are not used again; 1 was in the tier before.
    let trace = reading(512, &[&[1], &[2], &[4], &[1, 2], &[3]]);
    // 1 or 2 for 4, then 4 for it, and then nothing.
    assert_eq!(moved(&trace, SpillPolicy::Belady), (2, 1));
}

#[test]
fn a_new_array_has_no_copy_and_takes_the_block_of_what_is_consumed_for_it() {
    let launch = |step: u32, from: String, to: String| {
        format!(
            r#"{{"step": {step}, "program": "p", "arguments": [["{from}", 200, true]], "results": [["{to}", 256]]}}"#
        )
    };
    // Two arrays in turn, made anew each time, where there is room for one.
    let mut launches = vec![launch(1, "#1".into(), "5@1".into()), launch(2, "#2".into(), "5@2".into())];
    launches.extend((3..=10).map(|step| launch(step, format!("5@{}", step - 2), format!("5@{step}"))));
    let text = format!(r#"{{"limit": 256, "alive": ["5@9", "5@10"], "launches": [{}]}}"#, launches.join(","));
    let trace = parse(&text).expect("a good trace");
    assert_eq!(trace.peak, Bytes::new(512));
    for policy in SpillPolicy::ALL {
        assert_eq!(moved(&trace, policy), (9, 8), "{}", policy.name());
    }
    // As a part of a larger report.
    let within = parse(&format!(r#"{{"arenas": [1, {{}}], "spill": {text}}}"#)).expect("a good trace");
    assert_eq!(moved(&within, SpillPolicy::Lru), (9, 8));
}

#[test]
fn launches_that_need_more_than_there_is_are_counted_and_passed_over() {
    let trace = parse(
        r##"{"limit": 512, "alive": ["8@2"], "launches": [
            {"step": 1, "program": "p", "arguments": [["#1", 256, true]], "results": [["8@1", 512]]},
            {"step": 2, "program": "q", "arguments": [["8@1", 512, false]], "results": [["8@2", 256]]},
            {"step": 3, "program": "r", "arguments": [["8@2", 256, false], ["#2", 256, false]], "results": []}
        ]}"##,
    );
    let reports = compare(&trace.expect("a good trace"), &SpillPolicies(SpillPolicy::ALL.into()), None);
    for report in reports.expect("a small capacity") {
        assert_eq!((report.failed, report.launches, report.bytes_moved), (1, 3, 0), "{}", report.policy);
        assert_eq!((report.ratio_to_belady, report.peak_live_bytes), (None, 768));
    }
}

#[test]
fn results_of_one_name_are_several_arrays() {
    let trace = parse(
        r#"{"limit": 4096, "alive": ["8@1"], "launches": [
            {"step": 1, "program": "p", "arguments": [], "results": [["8@1", 256], ["8@1", 256], ["8@1", 512]]},
            {"step": 2, "program": "q", "results": [],
             "arguments": [["8@1", 256, true], ["8@1", 256, false], ["8@1", 512, false]]},
            {"step": 3, "program": "q", "arguments": [["8@1", 256, false], ["8@1", 256, false]], "results": []}
        ]}"#,
    );
    let trace = trace.expect("a good trace");
    let arguments: Vec<_> = trace.launches.iter().map(|launch| &launch.arguments[..]).collect();
    assert_eq!(arguments, [&[][..], &[0, 1, 2], &[1]]);
    assert_eq!(trace.launches[1].gone, [0]);
    assert!(trace.launches[2].gone.is_empty(), "alive at the end");
}

#[test]
fn a_number_is_given_to_another_array() {
    let trace = parse(
        r##"{"limit": 4096, "launches": [
            {"step": 1, "program": "p", "arguments": [["#1", 256, true]], "results": []},
            {"step": 2, "program": "p", "arguments": [["#1", 256, false]], "results": []},
            {"step": 5, "program": "p", "arguments": [["#1", 512, false]], "results": []}
        ], "alive": ["#1", "#7"]}"##,
    );
    let trace = trace.expect("a good trace");
    let gone: Vec<_> = trace.launches.iter().map(|launch| &launch.gone[..]).collect();
    assert_eq!(gone, [&[0][..], &[1], &[]]);
}

#[test]
fn what_is_wrong_with_a_trace_is_told_with_its_place_and_what_is_allowed() {
    let one = r#"{"step": 3, "program": "p", "arguments": [["7@2", 256, true]], "results": [["7@3", 256]]}"#;
    let launches = |launches: &str| format!(r#"{{"limit": 1024, "launches": [{launches}], "alive": []}}"#);
    let next = |arguments: &str, results: &str| {
        launches(&format!(
            r#"{one}, {{"step": 4, "program": "p", "arguments": [{arguments}], "results": [{results}]}}"#
        ))
    };
    for (text, message) in [
        (
            "{\n\"limit\": -1}".into(),
            "t.json: invalid value: integer `-1`, expected u64 at line 2 column 11; allowed is",
        ),
        ("nothing".into(), "at line 1 column 2; allowed is an object of JSON with `limit`, `launches` and `alive`"),
        (r#"{"launches": []}"#.into(), "t.json: no `limit`; allowed is an object"),
        (r#"{"limit": 1}"#.into(), "t.json: no `launches`; allowed is an object"),
        (launches("\n{\"step\": 3}"), "missing field `program` at line 2 column 11; allowed is"),
        (next(r#"["7@3", 256]"#, ""), "expected a tuple of size 3"),
        (
            launches(&format!("{one},{one}")),
            "t.json: step 3: it comes after step 3; allowed are steps from 1 on that ascend",
        ),
        (next(r#"["x", 1, true]"#, ""), "t.json: step 4: argument `x`: allowed are names ORIGIN@STEP, such as 7@12"),
        (next(r##"["#x", 1, true]"##, ""), "argument `#x`: allowed are names ORIGIN@STEP"),
        (next(r#"["7@0", 1, true]"#, ""), "argument `7@0`: allowed are names ORIGIN@STEP"),
        (next(r#"["7@4", 1, true]"#, r#"["7@4", 1]"#), "argument `7@4`: allowed are results of steps before 4"),
        (next(r#"["7@2", 256, true]"#, ""), "argument `7@2`: step 3 consumed it; allowed are arrays that exist"),
        (
            next(r#"["7@3", 257, true]"#, ""),
            "argument `7@3`: it has 256 bytes, rounded up to 256; allowed is the same size",
        ),
        (next("", r##"["#1", 1]"##), "result `#1`: allowed are names ORIGIN@4"),
        (next("", r#"["7@3", 1]"#), "result `7@3`: allowed are names ORIGIN@4"),
        (next("", r#"["7@4", 18446744073709551615]"#), "result `7@4`: the arrays up to here exceed"),
        (
            launches(one).replace(r#""alive": []"#, r#""alive": ["7@2"]"#),
            "alive `7@2`: step 3 consumed it; allowed are",
        ),
        (launches(one).replace(r#""alive": []"#, r#""alive": ["7"]"#), "alive `7`: allowed are names ORIGIN@STEP"),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.contains(message), "{error}");
    }
}

/// A few arrays of several sizes, read, consumed and made at random.
fn random(rng: &mut Rng) -> Launches {
    let mut arrays: Vec<(String, u64)> = (0..6).map(|number| (format!("#{number}"), 256 * rng.u64(1..5))).collect();
    let mut launches = Vec::new();
    for step in 1..40 {
        let (mut arguments, mut results) = (Vec::new(), Vec::new());
        for _ in 0..rng.u32(0..3) {
            if arrays.is_empty() {
                continue;
            }
            let (name, bytes) = arrays.swap_remove(rng.usize(0..arrays.len()));
            let consumed = rng.u32(0..4) == 0;
            arguments.push((name.clone(), bytes, consumed));
            if !consumed {
                arrays.push((name, bytes));
            }
        }
        for origin in 0..rng.u32(0..2) {
            results.push((format!("{origin}@{step}"), 256 * rng.u64(1..5)));
        }
        arrays.extend(results.iter().cloned());
        let program = rng.u32(0..3).to_string();
        launches
            .push(serde_json::json!({"step": step, "program": program, "arguments": arguments, "results": results}));
    }
    let alive: Vec<String> = arrays.into_iter().map(|(name, _)| name).collect();
    let text = serde_json::json!({"limit": 256 * rng.u64(3..16), "alive": alive, "launches": launches}).to_string();
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn no_policy_copies_less_than_the_floor() {
    let mut rng = Rng::with_seed(1);
    let mut copied = 0;
    for _ in 0..300 {
        let trace = random(&mut rng);
        let (least_out, least_back) = moved(&trace, SpillPolicy::Floor);
        for policy in [SpillPolicy::Predict, SpillPolicy::Lru, SpillPolicy::Fifo, SpillPolicy::Belady] {
            let (out, back) = moved(&trace, policy);
            assert!(out >= least_out && back >= least_back, "{}: {out} {back} {trace:?}", policy.name());
        }
        copied += least_out.min(least_back);
    }
    assert!(copied > 300, "{copied}");
}

/// Figures are told with a workload's name and seed, so a seed must go on to mean the same trace.
#[test]
fn a_seed_means_the_same_executions_for_ever() {
    let found = Executions::ALL.map(|workload| {
        let trace = parse(&workload.generate(0)).expect("a good trace");
        let part = trace.limit.get() as f64 / trace.peak.get() as f64;
        assert!((0.24..=0.25).contains(&part), "{part}");
        assert_eq!(trace.fitting(trace.limit).1, 0, "each launch fits");
        (workload.name(), trace.launches.len(), trace.peak.get())
    });
    let expected = [
        ("layers-8", 500, 228_589_568),
        ("layers-16", 980, 446_693_376),
        ("layers-48", 2900, 1_319_108_608),
        ("layers-eval", 1044, 446_693_376),
        ("irregular", 1500, 416_719_872),
    ];
    assert_eq!(found, expected);
}

/// What the prediction of `src/memory/next_use.rs` is for.
#[test]
fn on_layers_trained_in_turn_the_prediction_is_near_belady() {
    for workload in [Executions::Layers(8), Executions::Layers(16), Executions::Evaluated(16)] {
        let trace = parse(&workload.generate(0)).expect("a good trace");
        let reports = compare(&trace, &SpillPolicies(SpillPolicy::ALL.into()), None).expect("a small capacity");
        let ratio = |at: usize| reports[at].ratio_to_belady.unwrap_or(f64::NAN);
        assert!(ratio(0) < 1.02 && ratio(1) > 1.05 && ratio(4) <= 1.0, "{reports:?}");
    }
}
