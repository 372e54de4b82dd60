//! `maxsim info`: devices, kernels and limits.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use maxsim::Device;
use maxsim::format::{ElementType, TokenFormat};
use maxsim::layout::{MAX_COUNT, MAX_DIM};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::args::InfoArgs;
use crate::rank::explain;
use crate::texts::counted;

/// Runs the command.
pub fn info(args: &InfoArgs) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(args, &mut out).context("writing to standard output failed")
}

fn write(args: &InfoArgs, out: &mut impl Write) -> io::Result<()> {
    devices(out)?;
    if args.kernels {
        kernels(out)?;
    }
    limits(out)?;
    out.flush()
}

fn devices(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "maxsim {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "\ndevices")?;
    let threads = counted(rayon::current_num_threads() as u64, "thread", "threads");
    writeln!(out, "  {}: {threads}", Device::cpu())?;
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
    writeln!(out, "  --device auto takes {}", Device::best())
}

fn kernels(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nkernels (--kernel NAME)")?;
    let width = |len: fn(&Variant) -> usize| FORWARD.iter().map(len).max().unwrap_or(0);
    let (name_width, formats_width) =
        (width(|row| row.name.len()), width(|row| formats(row.operand).chars().count()));
    for row in FORWARD {
        writeln!(
            out,
            "  {:name_width$}  {:6} {:formats_width$}  dim {} {:4}, tiles of {:3} query × {:3} \
             document tokens, {:2} stages, {:3} threads, {:3} KB shared{}",
            row.name,
            row.arch.target(),
            formats(row.operand),
            if row.schedule.is_contiguous() { '=' } else { '≤' },
            row.dim_max,
            row.query_tile,
            row.document_tile,
            row.stages,
            row.threads,
            row.shared_bytes(row.dim_max).div_ceil(1024),
            match row {
                row if row.normalizes() => ", normalises",
                row if row.winners => ", finds winners",
                row if row.schedule.is_contiguous() && row.schedule.is_stream_k() =>
                    ", documents back to back, in equal shares",
                row if row.schedule.is_contiguous() => ", documents back to back",
                row if row.schedule.is_stream_k() => ", documents in equal shares",
                _ => "",
            },
        )?;
    }
    Ok(())
}

/// Describes a kernel's operand: the format of queries and documents, or of each.
fn formats(operand: Operand) -> String {
    let elements = ElementType::ALL.map(TokenFormat::from);
    let stored = || elements.into_iter().chain(TokenFormat::QUANTIZED);
    let documents = || stored().chain(ElementType::ALL.map(TokenFormat::Residual));
    let pairs = stored().flat_map(|queries| documents().map(move |of| (queries, of)));
    let mut pairs =
        pairs.filter(|&(queries, of)| TokenFormat::operand(queries, of) == Some(operand));
    match pairs.next() {
        Some((queries, documents)) if queries == documents => queries.to_string(),
        Some((queries, documents)) => format!("{queries}, {documents}"),
        None => operand.to_string(),
    }
}

fn limits(out: &mut impl Write) -> io::Result<()> {
    let dim_max = FORWARD.iter().map(|row| row.dim_max).max().unwrap_or(0);
    let plaid = TokenFormat::Residual(ElementType::F16);
    let elements = ElementType::ALL.into_iter().map(TokenFormat::from);
    let formats = elements.chain(TokenFormat::QUANTIZED).chain([plaid]).map(TokenFormat::name);
    let (formats, affine) = (Vec::from_iter(formats).join(", "), TokenFormat::Int8Affine);
    writeln!(out, "\nlimits")?;
    writeln!(out, "  formats {formats} ({affine} and {plaid} for documents alone)")?;
    writeln!(out, "  dim 1 to {MAX_DIM} on the CPU, to {dim_max} on CUDA devices")?;
    writeln!(out, "  below {MAX_COUNT} token rows a file; documents are streamed in chunks")
}

/// Describes a CUDA device: the limits that decide which kernels run, and its memory.
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
