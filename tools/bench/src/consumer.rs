//! A job of coprep that takes batches and does nothing else. [`jobs`](super::jobs) describes its orders.

use std::convert::Infallible;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use coprep_measurement::Result;
use coprep_measurement::images::ImageOperators;
use coprep_measurement::job::{JobOptions, MeasuredJob};
use coprep_measurement::plan::SampleSource;
use coprep_protocol::paths::CoordinatorPaths;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// The order to a job, as a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConsumerOrder {
    pub(crate) folder: PathBuf,
    #[serde(flatten)]
    pub(crate) operators: ImageOperators,
    pub(crate) batch_size: u32,
    /// Seconds of the measurement.
    pub(crate) seconds: f64,
    pub(crate) source: SampleSource,
    pub(crate) ids: Vec<u32>,
}

/// Runs one of the jobs of coprep, in a process of its own. The first line of `orders` describes the batches. The job
/// takes them until `orders` ends, which ends the process.
///
/// # Errors
/// If the order cannot be understood, or if no more batches come.
pub fn run_job<R: BufRead + Send + 'static>(
    paths: &CoordinatorPaths,
    mut orders: R,
    results: &mut impl Write,
) -> Result<Infallible> {
    // The process that gives the orders may be killed.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut line = String::new();
    orders.read_line(&mut line)?;
    let order: ConsumerOrder = serde_json::from_str(&line)?;
    let job = MeasuredJob::attach(&JobOptions {
        paths,
        spec: &crate::pipeline(&order.operators, &order.folder)?,
        form: order.source.form(),
        ids: &order.ids,
        batch_size: order.batch_size,
    })?;
    // The first epoch fills the cache, and brings the loader to its usual speed.
    job.epoch(|_| Ok(()))?;
    writeln!(results, "ready")?;
    results.flush()?;
    take(&job, order.seconds, orders, results)
}

/// Takes batches until `orders` ends, which ends the process.
fn take<R: BufRead + Send + 'static>(
    job: &MeasuredJob,
    seconds: f64,
    orders: R,
    results: &mut impl Write,
) -> Result<Infallible> {
    let go = listen(orders);
    let mut window = Window::new(seconds);
    loop {
        job.epoch(|samples| {
            if samples > 0
                && go.load(Ordering::Relaxed)
                && let Some((samples, seconds)) = window.arrive(samples, Instant::now())
            {
                let result = serde_json::json!({ "samples": samples, "seconds": seconds });
                writeln!(results, "{result}")?;
                results.flush()?;
            }
            Ok(())
        })?;
    }
}

/// Reads the orders in a thread. Returns the flag that a line sets; the end of the orders ends the process.
fn listen<R: BufRead + Send + 'static>(orders: R) -> Arc<AtomicBool> {
    let go = Arc::new(AtomicBool::new(false));
    let flag = go.clone();
    std::thread::spawn(move || {
        orders
            .lines()
            .map_while(std::result::Result::ok)
            .for_each(|_| flag.store(true, Ordering::Relaxed));
        // The measurement is over. The job itself may wait for a batch now, so it cannot be asked to end.
        std::process::exit(0);
    });
    go
}

/// Counts samples from one batch to another, and the time between the two.
struct Window {
    seconds: f64,
    began: Option<Instant>,
    samples: u64,
    is_over: bool,
}

impl Window {
    fn new(seconds: f64) -> Self {
        Window {
            seconds,
            began: None,
            samples: 0,
            is_over: false,
        }
    }

    /// Counts a batch. Returns the samples and seconds once, when the time is over.
    fn arrive(&mut self, samples: u64, now: Instant) -> Option<(u64, f64)> {
        let Some(began) = self.began else {
            self.began = Some(now);
            return None;
        };
        self.samples += samples;
        let time = (now - began).as_secs_f64();
        if self.is_over || time < self.seconds {
            return None;
        }
        self.is_over = true;
        Some((self.samples, time))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use coprep_protocol::spec::Interpolation;

    use super::*;

    #[test]
    fn an_order_survives_its_line_of_json() {
        let order = ConsumerOrder {
            folder: "/data/photos".into(),
            operators: ImageOperators {
                resize: Some(256),
                interpolation: Interpolation::Nearest,
                center_crop: Some(224),
                exif: true,
                image_size: 192,
            },
            batch_size: 64,
            seconds: 2.5,
            source: SampleSource::Encoded,
            ids: vec![0, 7, u32::MAX],
        };
        let line = serde_json::to_string(&order).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<ConsumerOrder>(&line).unwrap(), order);
    }

    #[test]
    fn what_came_before_the_first_batch_does_not_count() {
        let (mut window, began) = (Window::new(1.0), Instant::now());
        let at = |seconds| began + Duration::from_secs_f64(seconds);
        assert_eq!(window.arrive(64, at(0.0)), None);
        assert_eq!(window.arrive(64, at(0.75)), None);
        assert_eq!(window.arrive(16, at(1.5)), Some((80, 1.5)));
        assert_eq!(window.arrive(64, at(2.0)), None, "it is said once");
    }
}
