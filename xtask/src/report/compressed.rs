//! The page's section about compressed documents.

use std::fmt::Write as _;

use super::markdown::{costs, facts, figure_of, figures, goals, ms, ratio, roofs};
use super::record::{Record, Row};

pub fn section(page: &mut String, record: &Record) {
    facts(page, &record.facts);
    goals(page, record);
    cases(page, record);
    floors(page, record);
    errors(page, record);
    costs(page, record);
    roofs(page, record);
}

fn cases(page: &mut String, record: &Record) {
    *page += "\n### All cases\n\nMilliseconds on the device: median (interquartile range), caches \
              cold. The limit is the larger of the arithmetic at the rate of a cuBLAS product of \
              8192³, in FP8 for INT8 too and in f16 for residuals, and the time of a kernel that \
              only reads as many bytes as the compressed documents have, scales included. f16: \
              our forward of the same tokens before they were compressed. Coarse to fine is \
              compared with that forward, in the column of the best peer, and its limit is that \
              of the codes alone, without the f16 rows that it reads besides. Goals in \
              brackets.\n\n\
              | case | maxsim | peers | × the best peer | limit | of the limit | f16, ms | \
              × f16 |\n\
              |---|---|---|---|---|---|---|---|\n";
    for row in &record.rows {
        let (f16, x_f16) = (figure_of(&row.f16), ratio(row.x_f16));
        let _ = writeln!(page, "{} {f16} | {x_f16} |", figures(row));
    }
}

fn floors(page: &mut String, record: &Record) {
    let has_any = |row: &&Row| {
        let floors = &row.floors;
        [floors.memory_ms, floors.gather_ms, floors.decode_ms].iter().any(Option::is_some)
    };
    let rows: Vec<&Row> = record.rows.iter().filter(has_any).collect();
    if rows.is_empty() {
        return;
    }
    *page += "\n### Floors of residual documents\n\nLeast times in milliseconds: to read codes and \
              residuals from memory; to gather a centroid's row of 2 bytes an element for every \
              token from the L2 cache, at 9.5 TB/s; to issue the instructions that decode.\n\n\
              | case | maxsim | memory | gather | decoding |\n|---|---|---|---|---|\n";
    for row in rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            row.case,
            figure_of(&row.ours),
            ms(row.floors.memory_ms),
            ms(row.floors.gather_ms),
            ms(row.floors.decode_ms),
        );
    }
}

fn errors(page: &mut String, record: &Record) {
    let of_bound = record.rows.iter().filter_map(|row| row.ours.largest_error_of_bound);
    let of_bound = of_bound.max_by(f64::total_cmp);
    let losses: Vec<(&Row, f64, f64)> = record
        .rows
        .iter()
        .filter_map(|row| Some((row, row.ours.mean_loss?, row.ours.largest_excess?)))
        .collect();
    if of_bound.is_none() && losses.is_empty() {
        return;
    }
    *page += "\n### Errors\n\n";
    if let Some(most) = of_bound {
        let _ = writeln!(
            page,
            "Against float64 of what the codes stand for, the largest error of a sample of \
             documents is {most:.2} of the bound that the library states.",
        );
    }
    if losses.is_empty() {
        return;
    }
    *page += "\nCoarse to fine, against float64 of the f16 tokens, relative, over a sample of \
              documents: what scores lose in the mean (at most 1e-3), and how far one is above \
              the exact score (at most 2e-6; below it where negative).\n\n\
              | case | mean loss | largest excess |\n|---|---|---|\n";
    for (row, loss, excess) in losses {
        let _ = writeln!(page, "| {} | {loss:.1e} | {excess:.1e} |", row.case);
    }
}
