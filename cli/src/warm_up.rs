//! `maxsim warm-up`: loads kernels and reports how long that takes.

use std::io::{self, BufWriter, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use maxsim::plan::KernelSource;
use maxsim::{Device, WarmUp, WarmUpReport};

use crate::args::{DeviceChoice, WarmUpArgs};

/// Runs the command.
pub fn warm_up(args: &WarmUpArgs) -> Result<()> {
    ensure!(
        args.device != DeviceChoice::CudaAll,
        "--device cuda:all: kernels are loaded for one GPU at a time; use cuda:N"
    );
    let start = Instant::now();
    let device = args.device.open()?;
    let opened = start.elapsed();
    let calls = WarmUp::default()
        .elements(&args.element)
        .dims(&args.dim)
        .winners(args.winners)
        .normalize(args.normalize)
        .training(args.training);
    let warmed = device.warm_up(&calls)?;
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out, &device, opened, &warmed)
        .and_then(|()| out.flush())
        .context("writing to standard output failed")
}

fn write(
    out: &mut impl Write,
    device: &Device,
    opened: Duration,
    warmed: &WarmUpReport,
) -> io::Result<()> {
    writeln!(out, "{device}: {}, opened in {:.1} ms", device.name(), ms(opened))?;
    let name_width = warmed.kernels.iter().map(|kernel| kernel.name.len()).max().unwrap_or(0);
    for kernel in &warmed.kernels {
        let took = ms(kernel.time.unwrap_or_default());
        writeln!(out, "  {:name_width$}  {:5}  {took:7.1} ms", kernel.name, kernel.source)?;
    }
    let n_kernels = warmed.kernels.len();
    if device.ordinal().is_none() {
        return writeln!(out, "the CPU engine has no kernels to load");
    }
    let is_cubin = |source| source == KernelSource::Cubin;
    let n_cubins = warmed.kernels.iter().filter(|kernel| is_cubin(kernel.source)).count();
    let n_compiled = n_kernels - n_cubins;
    writeln!(
        out,
        "{n_kernels} kernels ready in {:.1} ms: {n_cubins} from cubins, {n_compiled} compiled by \
         the driver",
        ms(warmed.time)
    )
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
