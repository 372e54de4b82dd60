//! `maxsim info`: devices, kernels and limits.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use maxsim::tokens::{MAX_COUNT, MAX_DIM};
use maxsim::{Device, Error};
use maxsim_kernels::variants::FORWARD;

/// No machine has more CUDA devices.
const MAX_DEVICES: usize = 64;

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
    for ordinal in 0..MAX_DEVICES {
        match Device::cuda(ordinal) {
            Ok(device) => writeln!(out, "  {device}")?,
            Err(Error::NoDevice { .. }) if ordinal > 0 => break,
            Err(error) => {
                writeln!(out, "  cuda:{ordinal}: {error}")?;
                if matches!(
                    error,
                    Error::NoDevice { .. } | Error::NoDriver { .. } | Error::CudaNotBuilt
                ) {
                    break;
                }
            }
        }
    }
    writeln!(out, "  --device auto takes {}", Device::best())?;

    writeln!(out, "\nkernels (--kernel NAME)")?;
    for row in FORWARD {
        writeln!(
            out,
            "  {:42} {:6} {:4} dim ≤ {:3}, tiles of {:3} query × {:3} document tokens, {} stages, {} threads, {:3} KB shared{}",
            row.name,
            row.arch.target(),
            row.element,
            row.dim_max,
            row.query_tile,
            row.document_tile,
            row.stages,
            row.threads,
            row.shared_bytes(row.dim_max).div_ceil(1024),
            if row.winners { ", finds winners" } else { "" },
        )?;
    }

    let dim_max = FORWARD.iter().map(|row| row.dim_max).max().unwrap_or(0);
    writeln!(out, "\nlimits")?;
    writeln!(out, "  elements f16, bf16, f32; one type for queries and documents")?;
    writeln!(out, "  dim 1 to {MAX_DIM} on the CPU, to {dim_max} on CUDA devices")?;
    writeln!(out, "  below {MAX_COUNT} token rows a file; documents are streamed in chunks")
}
