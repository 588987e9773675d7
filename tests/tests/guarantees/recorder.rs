//! The metrics of one thread: of a whole test, if it runs in a runtime of one thread.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Keeps the value of each metric; of a histogram, how many values it got.
#[derive(Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<String, Arc<Value>>>);

#[derive(Default)]
struct Value(Mutex<f64>);

impl Metrics {
    /// All values by `name{label="value",..}`, the labels in alphabetical order.
    pub(crate) fn values(&self) -> BTreeMap<String, f64> {
        let values = self.0.lock().unwrap();
        values
            .iter()
            .map(|(name, value)| (name.clone(), value.get()))
            .collect()
    }

    /// `Ok` if each of these metrics has its value.
    pub(crate) fn are(&self, expected: &[(&str, f64)]) -> Result<(), String> {
        let values = self.values();
        let differs = |(name, value): &&(&str, f64)| values.get(*name) != Some(value);
        if expected.iter().any(|metric| differs(&metric)) {
            let missing: Vec<_> = expected.iter().filter(differs).collect();
            Err(format!("expected {missing:?} in {values:#?}"))
        } else {
            Ok(())
        }
    }

    fn register(&self, key: &Key) -> Arc<Value> {
        let mut labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={:?}", label.key(), label.value()))
            .collect();
        labels.sort();
        let name = match labels[..] {
            [] => key.name().to_owned(),
            [..] => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }
}

impl Value {
    fn get(&self) -> f64 {
        *self.0.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut value = self.0.lock().unwrap();
        *value = change(*value);
    }
}

impl CounterFn for Value {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }

    fn absolute(&self, least: u64) {
        self.change(|value| value.max(least as f64));
    }
}

impl GaugeFn for Value {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

impl HistogramFn for Value {
    fn record(&self, _: f64) {
        self.change(|count| count + 1.0);
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.register(key))
    }
}
