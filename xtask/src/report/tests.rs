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
            {"n_docs": 1000, "doc_len": 100, "results": {"maxsim": {"ms": 0.01}, "flash": {"ms": 0.02}}},
            {"n_docs": 10000, "doc_len": 100, "results": {"maxsim": {"ms": 0.1}, "flash": {"error": "x"}}},
        ],
        "cold_start": {"cubin": {"open_ms": 100.0, "first_score_ms": 20.0}, "ptx": {"error": "y"}},
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
