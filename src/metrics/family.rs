//! Families whose children are all made at registration, by typed key.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

const PREFIX: &str = "hangar_medic";

/// Children of one family by typed key, all made at registration: nothing is looked up by text later.
pub(super) struct Each<K, M>(pub(super) BTreeMap<K, M>);

impl<K: Ord, M> Each<K, M> {
    pub(super) fn with(&self, key: &K, act: impl FnOnce(&M)) {
        if let Some(metric) = self.0.get(key) {
            act(metric);
        }
    }
}

pub(super) type Labels = Vec<&'static str>;

pub(super) fn one<K: Copy>(all: &'static [K], word: impl Fn(K) -> &'static str) -> impl Iterator<Item = (K, Labels)> {
    all.iter().map(move |k| (*k, vec![word(*k)]))
}

pub(super) fn cross<A: Copy, B: Copy>(
    all_a: &'static [A],
    all_b: &'static [B],
    word_a: fn(A) -> &'static str,
    word_b: fn(B) -> &'static str,
) -> impl Iterator<Item = ((A, B), Labels)> {
    all_a.iter().flat_map(move |a| all_b.iter().map(move |b| ((*a, *b), vec![word_a(*a), word_b(*b)])))
}

/// Makes and registers one family at a time.
pub(super) struct Registrar<'a>(pub(super) &'a Registry);

impl Registrar<'_> {
    pub(super) fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::with_opts(opts(name, help))?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.add(Gauge::with_opts(opts(name, help))?)
    }

    pub(super) fn int_gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::with_opts(opts(name, help))?)
    }

    pub(super) fn int_gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(opts(name, help), labels)?)
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        self.add(Histogram::with_opts(HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() })?)
    }

    pub(super) fn counters<K: Ord>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl Iterator<Item = (K, Labels)>,
    ) -> Result<Each<K, IntCounter>, prometheus::Error> {
        let family = self.add(IntCounterVec::new(opts(name, help), labels)?)?;
        Ok(Each(values.map(|(k, v)| Ok((k, family.get_metric_with_label_values(&v)?))).collect::<Result<_, prometheus::Error>>()?))
    }

    pub(super) fn gauges<K: Ord>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl Iterator<Item = (K, Labels)>,
    ) -> Result<Each<K, IntGauge>, prometheus::Error> {
        let family = self.int_gauges(name, help, labels)?;
        Ok(Each(values.map(|(k, v)| Ok((k, family.get_metric_with_label_values(&v)?))).collect::<Result<_, prometheus::Error>>()?))
    }

    pub(super) fn float_gauges<K: Ord>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl Iterator<Item = (K, Labels)>,
    ) -> Result<Each<K, Gauge>, prometheus::Error> {
        let family = self.add(GaugeVec::new(opts(name, help), labels)?)?;
        Ok(Each(values.map(|(k, v)| Ok((k, family.get_metric_with_label_values(&v)?))).collect::<Result<_, prometheus::Error>>()?))
    }
}

pub(super) fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(PREFIX)
}
