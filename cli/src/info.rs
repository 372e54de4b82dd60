//! `maxsim info`: devices, kernels and limits.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use maxsim::Device;
use maxsim::tokens::{MAX_COUNT, MAX_DIM};
use maxsim_kernels::variants::{FORWARD, Variant};

use crate::explain;

/// Runs the command.
pub fn info() -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out).and_then(|()| out.flush()).context("writing to standard output failed")
}

fn write(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "maxsim {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "\ndevices")?;
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(out, "  {}: {n_threads} threads", Device::cpu())?;
    match Device::n_cuda() {
        Ok(0) => writeln!(out, "  no CUDA device")?,
        Ok(n_devices) => {
            for ordinal in 0..n_devices {
                match Device::cuda(ordinal).and_then(|device| cuda_line(&device)) {
                    Ok(line) => writeln!(out, "  {line}")?,
                    Err(error) => writeln!(out, "  cuda:{ordinal}: {}", explain::device(&error))?,
                }
            }
        }
        Err(error) => writeln!(out, "  no CUDA device: {}", explain::device(&error))?,
    }
    writeln!(out, "  --device auto takes {}", Device::best())?;

    writeln!(out, "\nkernels (--kernel NAME)")?;
    let width = |len: fn(&Variant) -> usize| FORWARD.iter().map(len).max().unwrap_or(0);
    let (name_width, operand_width) =
        (width(|row| row.name.len()), width(|row| row.operand.name().len()));
    for row in FORWARD {
        writeln!(
            out,
            "  {:name_width$}  {:6} {:operand_width$}  dim {} {:4}, tiles of {:3} query × {:3} document tokens, {:2} stages, {:3} threads, {:3} KB shared{}",
            row.name,
            row.arch.target(),
            row.operand.name(),
            if row.in_runs { '=' } else { '≤' },
            row.dim_max,
            row.query_tile,
            row.document_tile,
            row.stages,
            row.threads,
            row.shared_bytes(row.dim_max).div_ceil(1024),
            match row {
                row if row.normalizes => ", normalises",
                row if row.winners => ", finds winners",
                row if row.in_runs && row.cuts => ", documents back to back, in equal shares",
                row if row.in_runs => ", documents back to back",
                row if row.cuts => ", documents in equal shares",
                _ => "",
            },
        )?;
    }

    let dim_max = FORWARD.iter().map(|row| row.dim_max).max().unwrap_or(0);
    writeln!(out, "\nlimits")?;
    writeln!(out, "  elements f16, bf16, f32; one type for queries and documents")?;
    writeln!(out, "  dim 1 to {MAX_DIM} on the CPU, to {dim_max} on CUDA devices")?;
    writeln!(out, "  below {MAX_COUNT} token rows a file; documents are streamed in chunks")
}

/// What decides which kernels run on a CUDA device, and how much it holds.
fn cuda_line(device: &Device) -> maxsim::Result<String> {
    let mut line = format!("{device}: {}", device.name());
    if let Some(limits) = device.limits() {
        let (major, minor) = limits.capability;
        line += &format!(
            ", compute capability {major}.{minor}, {} multiprocessors, {} KB shared",
            limits.n_multiprocessors,
            limits.shared_bytes / 1024
        );
    }
    if let Some(memory) = device.memory()? {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let (free, total) = (gib(memory.free_bytes), gib(memory.total_bytes));
        line += &format!(", {free:.1} of {total:.1} GiB free");
    }
    if let Some(version) = device.driver_version() {
        line += &format!(", driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
    }
    Ok(line)
}
