use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// A record with made-up figures.
fn sample() -> Value {
    let row = |case: &str, name: &str, ours: f64, peer: f64, x: f64| {
        json!({
            "case": case, "name": name, "element": "f16", "flop": 2.0e12, "bytes": 2.0e9,
            "read_ms": 0.5, "ours": {"ms": ours, "iqr_ms": 0.01, "enqueue_rust_us": 9.0},
            "peers": {"flash": {"ms": peer, "iqr_ms": 0.02}, "broken": {"error": "a | b"}},
            "ours_ms": ours, "best_peer": "flash", "best_peer_ms": peer, "x_best_peer": x,
            "limit_ms": 2.0, "limit_is": "arithmetic", "of_limit": 2.0 / ours,
            "targets": {"x": 1.5, "limit": null, "plain": null},
            "kernel": "maxsim_k", "kernel_sha256": "1",
        })
    };
    json!({
        "gpu": "Some GPU", "driver": "1.2", "date": "a day", "protocol": "as it is",
        "versions": {"torch": "9"}, "ptx_sha256": {"maxsim_k.ptx": "2"},
        "roofs": {"f16": {"ms": 1.4, "tflop_per_s": 780.0}},
        "rows": [
            row("fast case", "page-10k", 2.0, 4.0, 2.0),
            row("slow case", "1k-32-300", 4.0, 2.0, 0.5),
            {"case": "dead case", "name": "f32", "ours": {"error": "refused"}},
        ],
        "scaling": [
            {
                "n_docs": 1000, "doc_len": 100,
                "results": {"maxsim": {"ms": 0.01}, "flash": {"ms": 0.02}},
            },
            {
                "n_docs": 10000, "doc_len": 100,
                "results": {"maxsim": {"ms": 0.1}, "flash": {"error": "x"}},
            },
        ],
        "cold_start": {"cubin": {"open_ms": 100.0, "first_score_ms": 20.0}, "ptx": {"error": "y"}},
    })
}

/// A record of training steps with made-up figures.
fn training_sample() -> Value {
    let row = |case: &str, x: f64, backward: f64, beside: u64, cosine: f64| {
        json!({
            "case": case, "name": case, "element": "f16",
            "targets": {"x": 2.2, "limit": 0.75, "gather_floor": 1.8, "workspace_mb": 32},
            "ours": {
                "ms": 4.0, "iqr_ms": 0.01, "device_bytes": beside << 20, "winner_bytes": 16 << 20,
                "cosines": [1.0, cosine], "repeats": cosine > 0.9,
            },
            "forward": {"ms": 1.5}, "backward": {"ms": backward}, "gather_floor_ms": 1.25,
            "peers": {"flash": {"ms": 4.0 * x, "iqr_ms": 0.02, "device_bytes": 100 << 20}},
            "ours_ms": 4.0, "best_peer": "flash", "best_peer_ms": 4.0 * x, "x_best_peer": x,
            "limit_ms": 3.2, "of_limit": 0.8,
        })
    };
    json!({
        "gpu": "Some GPU", "driver": null, "date": "a day", "protocol": "in turns",
        "versions": {"torch": "9"},
        "rows": [
            row("good", 2.5, 2.0, 32, 0.9999999),
            row("bad", 2.0, 2.5, 34, 0.5),
            {
                "case": "alone", "name": "alone", "earlier_kernels": true,
                "targets": {"x": null}, "peers": {},
                "ours": {"ms": 9.0, "iqr_ms": 0.1}, "ours_ms": 9.0, "best_peer": null,
            },
            {"case": "dead", "name": "dead", "ours": {"error": "no room"}},
        ],
    })
}

/// A record of compressed documents with made-up figures.
fn compressed_sample() -> Value {
    let row = |case: &str, name: &str, ours: f64, x: f64, of_limit: f64| {
        json!({
            "case": case, "name": name, "element": "fp8", "rate": "f8",
            "flop": 2.0e12, "bytes": 1.3e9,
            "read_ms": 0.25, "targets": {"x": 2.4, "limit": 0.95},
            "ours": {"ms": ours, "iqr_ms": 0.01, "largest_error_of_bound": 0.25 / x},
            "peers": {"lik": {"ms": ours * x, "iqr_ms": 0.02}}, "f16": {"ms": 3.0},
            "ours_ms": ours, "best_peer": "lik", "best_peer_ms": ours * x, "x_best_peer": x,
            "limit_ms": ours * of_limit, "limit_is": "arithmetic", "of_limit": of_limit,
            "x_f16": 3.0 / ours,
        })
    };
    let mut plaid = row("PLAID", "plaid-2-4000-300", 0.1, 16.0, 0.1);
    plaid["floors"] = json!({"memory_ms": 0.01, "gather_ms": 0.03234});
    plaid["targets"] = json!({"x": 15.0});
    plaid.as_object_mut().unwrap().retain(|key, _| key != "f16" && key != "x_f16");
    let mut coarse = row("coarse to fine", "coarse-32-10000-1024", 2.0, 1.4, 0.9);
    coarse["targets"] = json!({"x": 1.5});
    coarse["ours"] =
        json!({"ms": 2.0, "iqr_ms": 0.01, "mean_loss": 2.5e-5, "largest_excess": -3.0e-8});
    coarse["peers"] = json!({"maxsim, f16": {"ms": 2.8, "iqr_ms": 0.02}});
    json!({
        "gpu": "Some GPU", "date": "a day", "protocol": "the same codes",
        "versions": {"torch": "9"},
        "roofs": {"f8": {"ms": 0.7, "tflop_per_s": 1500.0}},
        "rows": [
            row("FP8, fast", "fp8-page-10k", 1.5, 2.5, 0.96),
            row("FP8, slow", "fp8-1k-1024-1024", 2.0, 2.0, 0.5),
            plaid,
            coarse,
            {"case": "INT8, dead", "name": "int8-page-10k", "ours": {"error": "refused"}},
        ],
    })
}

/// A folder with a record in it.
fn root(test: &str, record: &Value) -> PathBuf {
    let root = std::env::temp_dir().join(format!("maxsim-report-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("docs/measured/gpu")).unwrap();
    fs::create_dir_all(root.join("docs/measured/without-records")).unwrap();
    fs::write(root.join("docs/measured/gpu/forward.json"), record.to_string()).unwrap();
    root
}

fn page(root: &Path) -> String {
    fs::read_to_string(root.join("docs/benchmarks.md")).unwrap()
}

#[test]
fn the_page_holds_every_case_and_names_missed_goals() {
    let root = root("page", &sample());
    write(&root).unwrap();
    let page = page(&root);
    for part in [
        "## Forward: Some GPU",
        "driver 1.2 · a day · torch 9",
        "| fast case | 2.000 | 4.000 (flash) | 2.00 | 1.00 |",
        " - slow case: × the best peer 0.500, goal 1.50",
        " - slow case: 9.0 µs to enqueue, goal 8",
        "0.50 × the best peer, goal 1.33",
        "earlier build of the kernel: fast case; slow case",
        "broken failed: a / b",
        "| dead case | failed: refused |",
        "the read-only kernel's best rate was 4.00 TB/s",
        "| 10000 | failed: x | 0.1000 |",
        "| cubin | 100.0 | 20.0 (≤ 50) | – |",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    assert!(!page.contains(" - fast case: ×"), "{page}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn training_steps_have_a_section_with_their_own_goals() {
    let root = root("training", &sample());
    let path = root.join("docs/measured/gpu/training.json");
    fs::write(path, training_sample().to_string()).unwrap();
    write(&root).unwrap();
    let page = page(&root);
    let (forward, training) = page.split_once("## Training: Some GPU").unwrap();
    assert!(forward.contains("## Forward: Some GPU"), "{page}");
    let steps = "4.000 (0.0100) | flash 10.000 (0.0200) | 2.50 (2.20) | 0.80 (0.75)";
    for part in [
        "a day · torch 9",
        "Protocol: in turns.",
        &format!("| good | {steps} | 16.0 + 32.0 (32) | 100.0 |"),
        "| alone † | 9.000 (0.1000) | – | – | – | – | – |",
        "† Not measured since kernels changed.",
        "| dead | failed: no room | – | – | – | – | – |",
        "| good | 1.500 | 2.000 | 1.250 | 1.60 (1.80) |",
        " - bad: × the fastest peer 2.000, goal 2.20; MB beside the winners 34.000, goal 32.00; \
         × the gather floor 2.000, goal 1.80; cosine with f32 0.5000000, goal 0.999999; a second \
         step gave other bits",
        " - dead: failed: no room",
        "A second step gave other bits: bad.",
        "f32 reference is 0.5000000",
    ] {
        assert!(training.contains(part), "{part} is not in\n{training}");
    }
    assert!(!training.contains(" - good:") && !training.contains(" - alone:"), "{training}");
    // Plots are of the scores alone.
    assert!(!training.contains(".svg"), "{training}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn compressed_documents_have_a_section_with_their_limits_and_floors() {
    let root = root("compressed", &sample());
    write(&root).unwrap();
    assert!(!page(&root).contains("## Compressed documents"));
    let path = root.join("docs/measured/gpu/compressed.json");
    fs::write(path, compressed_sample().to_string()).unwrap();
    write(&root).unwrap();
    let page = page(&root);
    let (_, compressed) = page.split_once("## Compressed documents: Some GPU").unwrap();
    for part in [
        "a day · torch 9",
        "Protocol: the same codes.",
        "rate of a cuBLAS product of 8192³, in FP8 for INT8 too",
        "| FP8, fast | 1.500 (0.0100) | lik 3.750 (0.0200) | 2.50 (2.40) | 1.440 (arithmetic) | \
         0.96 (0.95) | 3.000 | 2.00 |",
        "| PLAID | 0.1000 (0.0100) | lik 1.600 (0.0200) | 16.00 (15.00) | 0.0100 (arithmetic) | \
         0.10 | – | – |",
        " - FP8, slow: × the best peer 2.000, goal 2.40; of the limit 0.500, goal 0.95",
        "| PLAID | 0.1000 | 0.0100 | 0.0323 | – |",
        "the largest error of a sample of documents is 0.12 of the bound",
        "| INT8, dead | failed: refused | – |",
        "| coarse to fine | 2.000 (0.0100) | maxsim, f16 2.800 (0.0200) | 1.40 (1.50) |",
        " - coarse to fine: × the best peer 1.400, goal 1.50",
        "Coarse to fine is compared with that forward, in the column of the best peer",
        "| case | mean loss | largest excess |\n|---|---|---|\n| coarse to fine | 2.5e-5 | \
         -3.0e-8 |\n",
        "| f8 | 1500 |",
    ] {
        assert!(compressed.contains(part), "{part} is not in\n{compressed}");
    }
    assert!(
        !compressed.contains(" - FP8, fast:") && !compressed.contains(" - PLAID:"),
        "{compressed}"
    );
    assert!(
        !compressed.contains("| FP8, fast | 1.500 | "),
        "only residuals have floors\n{compressed}"
    );
    // Plots are of plain tokens.
    assert!(!compressed.contains(".svg"), "{compressed}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn search_has_a_section_of_a_folder_of_its_own() {
    let root = root("search", &sample());
    let folder = root.join("docs/measured/another");
    fs::create_dir_all(&folder).unwrap();
    let row = |case: &str, ours: Option<f64>, met: Option<bool>| {
        json!({
            "case": case, "card": "Some card", "ours": ours, "unit": "ms", "peer": "lik retrieve",
            "best_peer": 12.34, "x_best_peer": 5.02, "limit": 2.0, "of_limit": 0.814,
            "goal": met.map(|_| "≥ 5 × it"), "met": met, "peers": {"lik retrieve": 12.34},
        })
    };
    let mut missed = row("b | c", None, Some(false));
    missed["why"] = json!("OSError: no");
    let mut recall = row("recall", Some(0.5), None);
    recall["recall"] = json!({"maxsim": 1.0, "lik retrieve": 0.9, "scan": 1.0});
    recall["ours_ms"] = json!({"scan": 123.4});
    recall["peers"]["absent"] = json!("not | there");
    let record = json!({
        "card": "Some card", "driver": "1.2", "date": "a day", "protocol": "whole",
        "versions": {"torch": "9"}, "limits": {"read_tb_per_s": 3.1},
        "rows": [row("a", Some(2.457), Some(true)), missed, recall],
    });
    fs::write(folder.join("search.json"), record.to_string()).unwrap();
    let cpu = json!({"card": "Some CPU", "rows": [row("d", Some(1.0), Some(true))]});
    fs::write(folder.join("cpu.json"), cpu.to_string()).unwrap();
    let mut weights = row("weights", Some(1.0123), Some(false));
    weights["unit"] = json!("× the plain call");
    let operations = json!({"card": "Some card", "rows": [weights]});
    fs::write(folder.join("operations.json"), operations.to_string()).unwrap();
    write(&root).unwrap();
    let page = page(&root);
    for part in
        ["## Operations beside the sum of maxima: Some card", "| weights | 1.01 × the plain call |"]
    {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    let (search, forward) = page.split_once("## Forward: Some GPU").unwrap();
    let (search, cpu) = search.split_once("## CPU engine: Some CPU").unwrap();
    assert!(cpu.contains("1 of 1 goals are met.") && cpu.contains("| d | 1.00 ms |"), "{cpu}");
    for part in [
        "## Search: Some card",
        "driver 1.2 · a day · torch 9",
        "Protocol: whole.",
        "1 of 2 goals are met.",
        "| a | 2.46 ms | 12.3 ms (lik retrieve) | 5.02 | 2.00 ms | 0.81 | ≥ 5 × it | yes |",
        "| b / c | – |",
        "| 0.81 | ≥ 5 × it | no |",
        " - b | c: OSError: no",
        "| method | recall | ms |",
        "| maxsim | 1.000 | 0.5000 |\n| scan | 1.000 | 123 |\n| lik retrieve | 0.900 | 12.3 |",
        "| absent | – | not / there |",
    ] {
        assert!(search.contains(part), "{part} is not in\n{search}");
    }
    assert!(!search.contains(" - a:") && !forward.contains("Some card"), "{page}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn training_steps_that_meet_their_goals_say_so() {
    let mut record = training_sample();
    record["rows"].as_array_mut().unwrap().truncate(1);
    let root = root("training-met", &record);
    let measured = root.join("docs/measured/gpu");
    fs::rename(measured.join("forward.json"), measured.join("training.json")).unwrap();
    write(&root).unwrap();
    let page = page(&root);
    assert!(!page.contains('†'), "{page}");
    for part in ["Every goal is met.", "the same bits in every case", "is 0.9999999, goal 0.999999"]
    {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn the_plots_are_drawn_the_same_every_time() {
    let root = root("plots", &sample());
    let files = generate(&root).unwrap();
    let names: Vec<String> = files.keys().map(|path| path.display().to_string()).collect();
    let folder = "docs/measured/gpu";
    assert_eq!(names[0], "docs/benchmarks.md");
    for name in ["documents", "roofline", "speedup"] {
        let svg = &files[Path::new(&format!("{folder}/{name}.svg"))];
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("Some GPU"), "{name}");
    }
    assert!(files == generate(&root).unwrap());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn check_sees_what_was_not_written() {
    let root = root("check", &sample());
    assert!(check(&root).unwrap_err().to_string().contains("docs/benchmarks.md"));
    write(&root).unwrap();
    check(&root).unwrap();
    let mut record = sample();
    record["gpu"] = json!("Another");
    fs::write(root.join("docs/measured/gpu/forward.json"), record.to_string()).unwrap();
    assert!(check(&root).is_err());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn nothing_measured_is_nothing_to_write() {
    let empty = std::env::temp_dir().join(format!("maxsim-report-{}-none", std::process::id()));
    assert!(generate(&empty).unwrap().is_empty());
}

#[test]
fn rankings_of_compressed_tokens_have_a_section() {
    let root = root("fidelity", &sample());
    let folder = root.join("docs/measured/a-machine");
    fs::create_dir_all(&folder).unwrap();
    let figures = json!({
        "bytes_per_token": 130.01, "ndcg_at_10": 0.9458, "recall_at_10": 0.972,
        "top_10_overlap": 0.9964, "top_20_overlap": 0.9946,
    });
    let mut int8 = figures.clone();
    int8["case"] = json!("int8");
    int8["spearman"] = json!(0.999_967);
    int8["mean_relative_error"] = json!(9.657e-4);
    int8["largest_relative_error"] = json!(0.01006);
    let mut screened = figures;
    screened["case"] = json!("int8, then f16");
    let record = json!({"data": "some set", "date": "a day", "rows": [int8, screened]});
    fs::write(folder.join("fidelity.json"), record.to_string()).unwrap();
    write(&root).unwrap();
    let page = page(&root);
    for part in [
        "## Rankings of compressed tokens: some set",
        "| int8 | 130.0 | 0.9458 | 0.9720 | 0.9964 | 0.9946 | 0.99997 | 9.7e-4 | 1.0e-2 |",
        "| int8, then f16 | 130.0 | 0.9458 | 0.9720 | 0.9964 | 0.9946 | – | – | – |",
    ] {
        assert!(page.contains(part), "no {part:?} in:\n{page}");
    }
    fs::remove_dir_all(root).unwrap();
}
