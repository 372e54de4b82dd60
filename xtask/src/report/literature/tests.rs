use serde_json::{Value, json};

use super::*;

fn record() -> Literature {
    let row = |group: &str, case: &str, ours: f64, peers: Value| {
        json!({
            "group": group, "case": case, "ours": ours, "unit": "ms", "peers": peers,
            "x_best_peer": 2.0, "megabytes": {"maxsim": 0.04, "eager": 2000.0},
        })
    };
    let mut served = row("serving", "8 queries", 0.02752, json!({"eager": 0.17}));
    served["queries_per_s"] = json!(290_700.0);
    served["ours_ms"] = json!({"maxsim, f16": 0.5});
    let losses = json!({
        "group": "parity", "case": "4 steps", "ours": 1.9e-6, "unit": "largest difference",
        "curves": {"step": [0.0, 2.0], "maxsim": [3.0, 1.0], "PyTorch, f32": [3.0, 1.0]},
    });
    let all = json!({
        "card": "Some card", "date": "a day",
        "rows": [
            row("corpus", "one query of 1024 × 1000 × 1024", 0.33, json!({"eager": 1.5659})),
            row("corpus", "one query of 1024 × 9000 × 1024", 107.4, json!({
                "eager": "out of memory", "lik": "not run: too large", "flash": "ValueError: off",
            })),
            served,
            losses,
            {"group": "dims", "case": "dim 48", "why": "no | room"},
        ],
    });
    serde_json::from_value(all).unwrap()
}

#[test]
fn groups_have_tables_with_a_column_for_each_method() {
    let mut page = String::new();
    section(&mut page, "gpu", &record());
    for part in [
        "## Tables of the literature: Some card\n\na day.\n",
        "| case | maxsim | eager | flash | lik | × the best |\n|---|---|---|---|---|---|\n",
        "| one query of 1024 × 1000 × 1024 | 0.3300 (0.0) | 1.57 (2000.0) | – | – | 2.00 |",
        "| 107 (0.0) | out of memory | failed: ValueError: off | not run: too large | 2.00 |",
        "| case | maxsim | maxsim, f16 | eager | × the best | queries/s |",
        "| 8 queries | 0.0275 (0.0) | 0.5000 | 0.1700 (2000.0) | 2.00 | 290700 |",
        "| dim 48 | failed: no / room |",
        "| 4 steps | 1.9e-6 |",
        "(measured/gpu/pages.svg)",
        "(measured/gpu/losses.svg)",
    ] {
        assert!(page.contains(part), "no {part:?} in:\n{page}");
    }
    assert!(!page.contains("Long queries"), "{page}");
}

#[test]
fn lines_of_the_plot_end_where_memory_does() {
    let plots = plots::all("Some card", &record()).unwrap();
    let [(first, pages), (second, losses)] = &plots[..] else { panic!("{}", plots.len()) };
    assert_eq!((*first, *second), ("pages.svg", "losses.svg"));
    for (svg, series) in [(pages, ["maxsim", "eager"]), (losses, ["maxsim", "PyTorch, f32"])] {
        assert!(svg.starts_with("<svg") && svg.contains("Some card"), "{svg}");
        assert!(series.iter().all(|name| svg.contains(name)), "{svg}");
    }
    // Two points of ours and one of the eager method's; those that failed are no line.
    assert_eq!(pages.matches("<circle").count(), 3);
    assert!(!pages.contains("flash"), "{pages}");
}
