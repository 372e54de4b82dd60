//! Events: points in a stream, to measure between.

use std::time::Instant;

use super::Device;
use crate::cuda::CudaEvent;
use crate::error::{Error, Result};
use crate::runtime::on::On;

/// A point in a stream, to measure the time between two of them.
#[derive(Debug)]
#[must_use]
pub struct Event {
    pub(crate) device: Device,
    pub(crate) inner: On<Instant, CudaEvent>,
    pub(crate) is_recorded: bool,
}

impl Event {
    /// Milliseconds from `start` to this event on the device's clock (resolution about half
    /// a microsecond). Waits for both.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when one of them was never recorded, [`Error::WrongDevice`]
    /// when they are of different devices.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        self.device.check_same("start", &start.device)?;
        if !self.is_recorded || !start.is_recorded {
            return Err(Error::Unsupported {
                what: "the time between events that were not recorded".into(),
                why: "Stream::record both of them first".into(),
            });
        }
        match (&self.inner, &start.inner) {
            (On::Cpu(end), On::Cpu(start)) => {
                Ok(end.saturating_duration_since(*start).as_secs_f32() * 1e3)
            }
            (On::Cuda(end), On::Cuda(start)) => end.elapsed_ms(start),
            _ => Err(Error::WrongDevice {
                argument: "start",
                expected: self.device.to_string(),
                found: start.device.to_string(),
            }),
        }
    }
}

impl Device {
    /// A new event, to be recorded on streams of this device.
    pub fn event(&self) -> Result<Event> {
        let inner = match &self.0 {
            On::Cpu(()) => On::Cpu(std::time::Instant::now()),
            On::Cuda(device) => On::Cuda(CudaEvent::timing(device)?),
        };
        Ok(Event { device: self.clone(), inner, is_recorded: false })
    }
}
