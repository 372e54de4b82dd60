//! The commands besides `rank` and `quantize`: what they list, and help.

use crate::tool::run;

#[test]
fn warm_up_lists_what_it_has_loaded() {
    let output = run(["warm-up", "--device", "cpu", "--element", "f16", "--dim", "128"]).ok();
    assert!(output.starts_with("cpu: CPU, opened in "), "{output}");
    assert!(output.ends_with("the CPU engine has no kernels to load\n"), "{output}");
    for (args, words) in [
        (["--element", "f64"], "expected f16, bf16 or f32"),
        (["--dim", "many"], "--dim"),
        (["--winners", "maybe"], "--winners"),
        (["--device", "cuda:99"], "--device cuda:99"),
    ] {
        let error = run([&["warm-up"], &args[..]].concat()).error();
        assert!(error.contains(words), "{words}: {error}");
    }
    let best = run(["warm-up", "--element", "f32", "--element", "f16", "--winners", "false"]).ok();
    let on_gpu = best.starts_with("cuda:");
    assert_eq!(on_gpu, best.contains("maxsim_forward_sm80_f32_q256 "), "{best}");
    assert_eq!(on_gpu, best.contains("maxsim_sum_partials"), "{best}");
    assert_eq!(on_gpu, best.contains("maxsim_combine_splits"), "{best}");
    assert!(!best.contains("bf16"), "{best}");
}

#[test]
fn info_lists_devices_and_limits_and_kernels_where_they_are_asked_for() {
    let output = run(["info"]).ok();
    for part in [
        "devices",
        "cpu: ",
        "--device auto takes",
        "limits",
        "formats f16, bf16, f32, int8, int8-affine, fp8, plaid ",
        "dim 1 to 4096",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(!output.contains("kernel") && output.lines().count() < 12, "{output}");
    let with_kernels = run(["info", "--kernels"]).ok();
    // How much memory a device has free may be another number a moment later.
    let lasting = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.contains("GiB free")).map(str::to_owned).collect()
    };
    let (without, all) = (lasting(&output), lasting(&with_kernels));
    let limits = without.iter().position(|line| line == "limits").unwrap();
    let (before, after) = without.split_at(limits);
    assert!(all.starts_with(before) && all.ends_with(after), "{with_kernels}");
    let columns: Vec<Vec<&str>> = with_kernels
        .lines()
        .filter(|line| line.contains("maxsim_forward_"))
        .map(|line| line.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect())
        .collect();
    assert!(columns.iter().any(|row| row[0] == "maxsim_forward_sm80_f16_d128_q256"));
    // One name per format, whatever kernels call it.
    for name in ["i8", "i8_affine", "e4m3", "residual", "affine_f16"] {
        let is_named = |part: &&str| part.split([' ', ',']).any(|word| word == name);
        assert!(!columns.iter().any(|row| row[1..].iter().any(is_named)), "{name}");
    }
    for pair in ["int8, int8-affine", "f16, int8-affine", "bf16, plaid"] {
        assert!(
            columns.iter().any(|row| row[1..].iter().any(|part| part.ends_with(pair))),
            "{pair}"
        );
    }
}

#[test]
fn help_and_version_succeed() {
    assert!(run(["--version"]).ok().starts_with("maxsim "));
    let help = run(["rank", "--help"]).ok();
    for option in [
        "--queries",
        "--documents",
        "--top-k",
        "--device",
        "--format",
        "--output",
        "--texts",
        "--qrels",
        "--no-mmap",
        "--kernel",
    ] {
        assert!(help.contains(option), "{option}");
    }
    assert!(!help.contains("chunk-bytes"));
    assert_eq!(run::<&str>([]).code, Some(2));
}
