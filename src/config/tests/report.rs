//! Settings as a line, and as JSON.

use serde_json::json;

use super::*;

#[test]
fn json_has_every_setting_with_its_names_and_where_its_value_came_from() {
    let environment = environment(&[("PJRT_ARENA_STRATEGY", "tpu"), ("XLA_CLIENT_MEM_FRACTION", ".5")]);
    let given = options(&[("devices", "2")]);
    let findings = [
        Finding { row: &LIMIT, what: Found::Led(Ok("8GiB".to_owned())) },
        Finding { row: &LIMIT, what: Found::Led(Err(Error::invalid_argument("none"))) },
        Finding { row: &ENGINE, what: Found::Offer("a GPU".to_owned()) },
    ];
    let told = settings_as_json(&environment, &given, &findings);
    let settings = told["settings"].as_array().expect("an array");
    let names: Vec<_> = settings.iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, TABLE.iter().map(|row| row.name).collect::<Vec<_>>());
    let of = |name: &str| &settings[names.iter().position(|&one| one == name).expect(name)];
    assert_eq!((&of("strategy")["value"], &of("strategy")["source"]), (&json!("tpu"), &json!("PJRT_ARENA_STRATEGY")));
    assert_eq!(of("limit")["value"], "50%");
    assert_eq!(of("limit")["variable"], "PJRT_ARENA_LIMIT");
    assert_eq!(of("limit")["options"], json!(["limit", "memory_fraction"]));
    assert_eq!(of("limit")["others"], json!(["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"]));
    assert_eq!(of("limit")["led_to"], json!(["8GiB", "ERROR: none"]));
    assert_eq!((&of("engine")["here"], &of("engine")["default"]), (&json!(["a GPU"]), &json!("cpu")));
    assert_eq!(of("devices")["source"], "client option devices");
    assert!(
        of("devices")["others"]
            .as_array()
            .expect("names")
            .iter()
            .any(|name| name.as_str().is_some_and(|name| name.starts_with("XLA_FLAGS --")))
    );
    assert!(settings.iter().all(|one| one["error"].is_null() && one["variable"].is_string()));
}

#[test]
fn json_of_a_setting_that_is_not_valid_says_why_and_the_others_are_there() {
    let environment = environment(&[("PJRT_ARENA_LIMIT", "lots"), ("PJRT_ARENA_LIMT", "1GiB")]);
    let told = settings_as_json(&environment, &[], &[]);
    let wrong: Vec<_> =
        told["settings"].as_array().expect("an array").iter().filter(|one| !one["error"].is_null()).collect();
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0]["error"].as_str().expect("a text").starts_with("PJRT_ARENA_LIMIT=lots is not valid; allowed: "));
    assert_eq!((&wrong[0]["name"], &wrong[0]["value"]), (&json!("limit"), &json!(null)));
    assert!(told["warnings"][0].as_str().expect("a text").contains("PJRT_ARENA_LIMT"));
}

#[test]
fn one_line_says_it_all() {
    let settings = read(&[(PREALLOCATE, "false"), ("PJRT_ARENA_DEVICES", "4")], &[("limit", "40%"), ("devices", "2")]);
    let settings = settings.unwrap();
    let outcome = Outcome { limit_bytes: 6 << 30, scratch_bytes: Some(3 << 30), engine: Path::new("/e/cpu.so") };
    assert_eq!(
        settings.summary(Some(outcome)),
        "strategy=growing (XLA_PYTHON_CLIENT_PREALLOCATE), limit=40% = 6.00GiB per device (client option limit), \
         compact=off (default), share=off (default), share_min=0 (default), share_weight=100 (default), \
         spill=off (default), spill_limit=25% (default), \
         prefetch=off (default), sleep_after=off (default), tpu_tiles=off (default), \
         huge_pages=off (default), engine=cpu = /e/cpu.so (default), \
         cuda_driver=libcuda.so.1 (default), hip_driver=libamdhip64.so (default), headroom=512.00MiB (default), \
         gpu_scratch=50% = 3.00GiB per device (default), pinned_limit=64GiB or less (default), devices=2 (client option devices), \
         rewrite=on (default), \
         scratch=warm (default), zero_copy=on (default), history=65536 (default), oom_report=off (default), \
         log=warn (default); overridden: PJRT_ARENA_DEVICES=4"
    );
    assert!(!settings.summary(None).contains("6.00GiB"));
}
