//! What was measured, as a table and as JSON.

use serde::Serialize;

use crate::{Outcome, usage};

/// Everything that was measured in one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: usage::Machine,
    pub(crate) figures: Vec<Figure>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            machine: usage::Machine::this(),
            figures: Vec::new(),
        }
    }
}

/// One thing that was measured in each round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) scenario: String,
    pub(crate) database: String,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// One value a round.
    pub(crate) values: Vec<f64>,
    /// The same as multiples of others of the same round.
    pub(crate) against: Vec<Ratio>,
}

/// A figure as a multiple of another, round by round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratio {
    pub(crate) of: String,
    pub(crate) values: Vec<f64>,
}

impl Figure {
    pub(crate) fn new(database: &str, scenario: &str, name: &str, unit: &'static str) -> Self {
        Self {
            scenario: scenario.to_owned(),
            database: database.to_owned(),
            name: name.to_owned(),
            unit,
            values: Vec::new(),
            against: Vec::new(),
        }
    }

    pub(crate) fn of(mut self, values: Vec<f64>) -> Self {
        self.values = values;
        self
    }

    /// Compares with values of the same rounds.
    pub(crate) fn against(mut self, of: &str, others: &[f64]) -> Self {
        let values = self
            .values
            .iter()
            .zip(others)
            .map(|(value, other)| value / other);
        self.against.push(Ratio {
            of: of.to_owned(),
            values: values.collect(),
        });
        self
    }
}

impl Report {
    /// Adds a figure and prints it.
    pub(crate) fn add(&mut self, figure: Figure) {
        let heading = |figure: &Figure| format!("{}, {}", figure.scenario, figure.database);
        let new = heading(&figure);
        if self.figures.last().is_none_or(|last| heading(last) != new) {
            println!("\n{new}");
        }
        let ratios: Vec<String> = figure
            .against
            .iter()
            .map(|ratio| format!("{} x {}", spread(&ratio.values), ratio.of))
            .collect();
        println!(
            "  {:<44} {:>26} {:<6} {}",
            figure.name,
            spread(&figure.values),
            figure.unit,
            ratios.join("   ")
        );
        self.figures.push(figure);
    }

    pub(crate) fn json(&self) -> Outcome<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}

/// The middle of the values.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which this part of the values lies.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part) as usize;
    values
        .get(index.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Median and range.
fn spread(values: &[f64]) -> String {
    if let [value] = values {
        return number(*value);
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!(
        "{} [{}..{}]",
        number(median(values)),
        number(low),
        number(high)
    )
}

fn number(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
