//! Meters: what this process counts of itself while it works.

use prometheus_client::metrics::gauge::Gauge;

/// Counts in a gauge as long as it exists.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    /// Begins to count.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
