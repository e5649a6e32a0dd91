//! The two text formats: Prometheus' own, and OpenMetrics, which a client has to ask for.
//!
//! `prometheus-client` writes OpenMetrics. In Prometheus' own format, a counter's name includes `_total` everywhere,
//! and there are neither units nor an end mark.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
    GaugeValueEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::families::{Family, TOTAL, Value};

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionFormat {
    /// Prometheus' text format 0.0.4, which every client reads.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Returns the media type with its parameters.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        }
    }

    /// Returns the media type alone, as clients list it in `Accept`.
    pub(super) fn media_type(self) -> &'static str {
        let (media_type, _) = self.content_type().split_once(';').unwrap_or_default();
        media_type
    }
}

/// Writes the families as a text.
pub(super) fn write(families: Vec<Family>, format: ExpositionFormat) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot { families, format }));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    if format == ExpositionFormat::OpenMetrics {
        encode_eof(&mut text)?;
    }
    Ok(text)
}

#[derive(Debug)]
struct Snapshot {
    families: Vec<Family>,
    format: ExpositionFormat,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families.iter().try_for_each(|family| {
            let metrics = self.describe(family, &mut encoder)?;
            self.encode_samples(family, metrics)
        })
    }
}

impl Snapshot {
    /// Writes the head of a family: name, help text, type and unit.
    fn describe<'a>(
        &self,
        family: &'a Family,
        encoder: &'a mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'a>, fmt::Error> {
        let kind = if family.is_counter() {
            MetricType::Counter
        } else {
            MetricType::Gauge
        };
        let (name, unit) = match self.format {
            // The encoder writes the unit and the suffix of a counter behind the name itself.
            ExpositionFormat::OpenMetrics => split_unit(family.name.trim_end_matches(TOTAL)),
            ExpositionFormat::Prometheus => (family.name, None),
        };
        encoder.encode_descriptor(name, family.help, unit, kind)
    }

    /// Writes the samples of a family.
    fn encode_samples(&self, family: &Family, mut metrics: MetricEncoder<'_>) -> fmt::Result {
        // Prometheus' own format writes a counter like a gauge, under its whole name.
        let with_suffix = self.format == ExpositionFormat::OpenMetrics && family.is_counter();
        let encode = |metric: &mut MetricEncoder<'_>, value: &Value| {
            if with_suffix {
                metric.encode_counter::<NoLabelSet, _, f64>(value, None)
            } else {
                metric.encode_gauge(value)
            }
        };
        family.samples.iter().try_for_each(|(labels, value)| {
            if labels.is_empty() {
                encode(&mut metrics, value)
            } else {
                encode(&mut metrics.encode_family(labels)?, value)
            }
        })
    }
}

/// Splits the unit off a name, since the encoder takes them apart.
fn split_unit(name: &str) -> (&str, Option<&Unit>) {
    let units = [("_seconds", &Unit::Seconds), ("_bytes", &Unit::Bytes)];
    let split = |(suffix, unit)| Some((name.strip_suffix(suffix)?, Some(unit)));
    units.into_iter().find_map(split).unwrap_or((name, None))
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match *self {
            Value::Whole(n) => EncodeCounterValue::encode(&n, encoder),
            Value::Real(x) => EncodeCounterValue::encode(&x, encoder),
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match *self {
            Value::Whole(n) => EncodeGaugeValue::encode(&n, encoder),
            Value::Real(x) => EncodeGaugeValue::encode(&x, encoder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpositionFormat, write};
    use crate::families::{Family, Value};

    fn two() -> Vec<Family> {
        let strange = vec![("dataset", "a\"b\\c\nd".to_owned())];
        vec![
            Family {
                name: "coprep_read_bytes_total",
                help: "Bytes.",
                samples: vec![(strange, Value::Whole(u64::MAX))],
            },
            Family {
                name: "coprep_age_seconds",
                help: "Age.",
                samples: vec![(Vec::new(), Value::Real(0.5))],
            },
        ]
    }

    #[test]
    fn prometheus_wants_the_whole_name_of_a_counter() {
        let expected = "# HELP coprep_read_bytes_total Bytes.\n\
                        # TYPE coprep_read_bytes_total counter\n\
                        coprep_read_bytes_total{dataset=\"a\\\"b\\\\c\\nd\"} 18446744073709551615\n\
                        # HELP coprep_age_seconds Age.\n\
                        # TYPE coprep_age_seconds gauge\n\
                        coprep_age_seconds 0.5\n";
        assert_eq!(
            write(two(), ExpositionFormat::Prometheus).unwrap(),
            expected
        );
    }

    #[test]
    fn open_metrics_wants_units_and_an_end() {
        let expected = "# HELP coprep_read_bytes Bytes.\n\
                        # TYPE coprep_read_bytes counter\n\
                        # UNIT coprep_read_bytes bytes\n\
                        coprep_read_bytes_total{dataset=\"a\\\"b\\\\c\\nd\"} 18446744073709551615\n\
                        # HELP coprep_age_seconds Age.\n\
                        # TYPE coprep_age_seconds gauge\n\
                        # UNIT coprep_age_seconds seconds\n\
                        coprep_age_seconds 0.5\n\
                        # EOF\n";
        assert_eq!(
            write(two(), ExpositionFormat::OpenMetrics).unwrap(),
            expected
        );
    }
}
